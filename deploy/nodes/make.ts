/**
 * Several nodes on Kubernetes, as in docs/nodes.md: turns a copy of deploy.yaml, with keys and an image of its own, into one
 * with N nodes, the front, and HAProxy before both.
 *
 *     npm run --silent deploy:nodes -- 4 my-deploy.yaml > my-nodes.yaml
 */
import { readFileSync } from 'node:fs'
import { type Document, parseAllDocuments, stringify } from 'yaml'
import { haproxy } from '../balancers/make.ts'

const NAMESPACE = 'llm-proxy'
const PORT = 8080
const FRONT_PORT = 8090
/** The service that has all nodes' addresses, for workers, and a name of each, for the front and the balancer. */
const NODES_SERVICE = 'llm-proxy-nodes'
const BALANCER_IMAGE = 'haproxy:3.0-alpine'
/** The user of that image. */
const BALANCER_USER = 99

const labelsOf = (component: string) => ({
  'app.kubernetes.io/name': 'llm-proxy',
  'app.kubernetes.io/component': component,
})
const selectorOf = (component: string) => ({ podSelector: { matchLabels: labelsOf(component) } })

/**
 * @param text deploy.yaml or a copy of it
 * @param count how many nodes, 2 at least
 * @throws Error when the text lacks an object that is to be changed
 */
export function severalNodes(text: string, count: number): string {
  const documents = parseAllDocuments(text)
  const find = (kind: string, name: string): Document => {
    const found = documents.find(
      (each) => each.get('kind') === kind && each.getIn(['metadata', 'name']) === name,
    )
    if (found === undefined) throw new Error(`there is no ${kind} ${name}`)
    return found as Document
  }
  const nodes = Array.from({ length: count }, (_, ordinal) => `llm-proxy-${ordinal}.${NODES_SERVICE}`)
  const urls = nodes.map((host) => `http://${host}:${PORT}`)

  find('ConfigMap', 'llm-proxy').setIn(['data', 'LLM_PROXY_NODE'], `ordinal/${count}`)
  const proxy = find('StatefulSet', 'llm-proxy')
  proxy.setIn(['spec', 'serviceName'], NODES_SERVICE)
  proxy.setIn(['spec', 'replicas'], count)
  // No node waits for another one.
  proxy.setIn(['spec', 'podManagementPolicy'], 'Parallel')
  const image = String(proxy.getIn(['spec', 'template', 'spec', 'containers', 0, 'image']))
  // What agents and trainers knew as the proxy is the balancer now.
  find('Service', 'llm-proxy-server').setIn(['spec', 'selector'], labelsOf('balancer'))
  const worker = find('Deployment', 'llm-proxy-worker')
  const environment = ['spec', 'template', 'spec', 'containers', 0, 'env']
  const names = worker.toJS().spec.template.spec.containers[0].env as { name: string }[]
  const place = names.findIndex(({ name }) => name === 'LLM_PROXY_PROXY_URL')
  if (place === -1) throw new Error('the worker has no LLM_PROXY_PROXY_URL')
  worker.setIn([...environment, place, 'value'], `dns+http://${NODES_SERVICE}:${PORT}`)

  const clients = (find('NetworkPolicy', 'llm-proxy').toJS().spec.ingress[0].from as object[]).slice(1)
  find('NetworkPolicy', 'llm-proxy').setIn(
    ['spec', 'ingress', 0, 'from'],
    ['worker', 'balancer', 'front'].map(selectorOf),
  )
  const added = [
    nodesService(),
    balancerConfig(nodes),
    balancer(),
    policy('balancer', clients, PORT, [
      { to: [selectorOf('proxy')], ports: [{ port: PORT }] },
      { to: [selectorOf('front')], ports: [{ port: FRONT_PORT }] },
    ]),
    service('front', FRONT_PORT),
    front(image, urls),
    policy('front', [selectorOf('balancer')], FRONT_PORT, [
      { to: [selectorOf('proxy')], ports: [{ port: PORT }] },
    ]),
  ]
  const changed = documents.map((each) =>
    each.toString({ directives: false, lineWidth: 0, flowCollectionPadding: false }),
  )
  const whole = [
    ...changed,
    ...added.map((object) => stringify(object, { lineWidth: 0, aliasDuplicateObjects: false })),
  ].map((each) => each.replace(/^---\n/, '').trimEnd())
  return `${whole.join('\n---\n')}\n`.replace(
    /# One database has one writer: .*/,
    '# Each node has a database and sessions of its own. The number stands in LLM_PROXY_NODE and in the balancer as well.',
  )
}

function head(apiVersion: string, kind: string, name: string) {
  return { apiVersion, kind, metadata: { name, namespace: NAMESPACE } }
}

/** Without an address of its own, so that each node has a name; also of nodes that have just been started. */
function nodesService() {
  return {
    ...head('v1', 'Service', NODES_SERVICE),
    spec: {
      clusterIP: 'None',
      publishNotReadyAddresses: true,
      selector: labelsOf('proxy'),
      ports: [{ name: 'http', port: PORT, targetPort: 'http' }],
    },
  }
}

function service(component: string, port: number) {
  return {
    ...head('v1', 'Service', `llm-proxy-${component}`),
    spec: { selector: labelsOf(component), ports: [{ name: 'http', port, targetPort: 'http' }] },
  }
}

function balancerConfig(nodes: readonly string[]) {
  const file = haproxy({
    listen: `:${PORT}`,
    front: `llm-proxy-front:${FRONT_PORT}`,
    nodes: nodes.map((host) => `${host}:${PORT}`),
  })
  return { ...head('v1', 'ConfigMap', 'llm-proxy-balancer'), data: { 'haproxy.cfg': file } }
}

function balancer() {
  const mountPath = '/usr/local/etc/haproxy'
  return deployment('balancer', BALANCER_USER, {
    name: 'haproxy',
    image: BALANCER_IMAGE,
    ports: [{ name: 'http', containerPort: PORT }],
    // Of the balancer itself: it is ready when it listens, whichever nodes are.
    readinessProbe: { tcpSocket: { port: 'http' }, periodSeconds: 5 },
    resources: { requests: { cpu: '250m', memory: '128Mi' }, limits: { memory: '512Mi' } },
    volumeMounts: [{ name: 'config', mountPath }],
  })
}

function front(image: string, urls: readonly string[]) {
  return deployment('front', 65532, {
    name: 'front',
    image,
    args: [
      'front',
      '--host',
      '0.0.0.0',
      '--port',
      String(FRONT_PORT),
      ...urls.flatMap((url) => ['--node-url', url]),
    ],
    ports: [{ name: 'http', containerPort: FRONT_PORT }],
    readinessProbe: { tcpSocket: { port: 'http' }, periodSeconds: 5 },
    resources: { requests: { cpu: '250m', memory: '256Mi' }, limits: { memory: '1Gi' } },
  })
}

function deployment(
  component: string,
  user: number,
  container: { name: string; volumeMounts?: object[] } & Record<string, unknown>,
) {
  const labels = labelsOf(component)
  return {
    ...head('apps/v1', 'Deployment', `llm-proxy-${component}`),
    spec: {
      // Neither has state: one may go while the other serves.
      replicas: 2,
      selector: { matchLabels: labels },
      template: {
        metadata: { labels },
        spec: {
          automountServiceAccountToken: false,
          enableServiceLinks: false,
          securityContext: {
            runAsNonRoot: true,
            runAsUser: user,
            runAsGroup: user,
            seccompProfile: { type: 'RuntimeDefault' },
          },
          containers: [
            {
              ...container,
              securityContext: {
                allowPrivilegeEscalation: false,
                readOnlyRootFilesystem: true,
                capabilities: { drop: ['ALL'] },
              },
            },
          ],
          ...(container.volumeMounts && {
            volumes: [{ name: 'config', configMap: { name: `llm-proxy-${component}` } }],
          }),
        },
      },
    },
  }
}

/** Who reaches a component, and whom it reaches beside the name server. */
function policy(component: string, from: readonly object[], port: number, egress: readonly object[]) {
  const names = {
    to: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } } }],
    ports: ['UDP', 'TCP'].map((protocol) => ({ port: 53, protocol })),
  }
  return {
    ...head('networking.k8s.io/v1', 'NetworkPolicy', `llm-proxy-${component}`),
    spec: {
      podSelector: { matchLabels: labelsOf(component) },
      policyTypes: ['Ingress', 'Egress'],
      egress: [...egress, names],
      ingress: [{ from, ports: [{ port }] }],
    },
  }
}

if (import.meta.main) {
  const [count = '', path = 'deploy.yaml'] = process.argv.slice(2)
  if (!/^[2-9]$|^[1-9]\d{1,3}$/.test(count)) {
    console.error('usage: npm run --silent deploy:nodes -- NUMBER_OF_NODES [my-deploy.yaml] > my-nodes.yaml')
    process.exitCode = 2
  } else {
    process.stdout.write(severalNodes(readFileSync(path, 'utf8'), Number(count)))
  }
}
