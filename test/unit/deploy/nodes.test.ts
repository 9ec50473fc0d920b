/** What deploy/nodes/make.ts makes of deploy.yaml. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { severalNodes } from '../../../deploy/nodes/make.ts'
import { checkServeConfig } from '../../../src/proxy/config/check-serve.ts'
import { loadConfig } from '../../../src/proxy/config/load.ts'
import { FRONT } from '../../../src/proxy/config/options/front.ts'
import { SERVE } from '../../../src/proxy/config/options/serve.ts'
import { WORKER } from '../../../src/proxy/config/options/worker.ts'
import { parseNode } from '../../../src/proxy/session/state/nodes.ts'
import { OBJECTS, objectOf, readObjects } from '../../helpers/deploy-yaml.ts'
import { ROOT } from '../../helpers/dockerfile.ts'

const COUNT = 3
const SOURCE = readFileSync(join(ROOT, 'deploy.yaml'), 'utf8')
const TEXT = severalNodes(SOURCE, COUNT)
const objects = readObjects(join(t.testdir({ 'nodes.yaml': TEXT }), 'nodes.yaml'))
const nodes = objectOf('StatefulSet', 'llm-proxy', objects).spec!
const settings = objectOf('ConfigMap', 'llm-proxy', objects).data!
const labelsOf = (component: string) => ({
  'app.kubernetes.io/name': 'llm-proxy',
  'app.kubernetes.io/component': component,
})
const urls = Array.from({ length: COUNT }, (_, i) => `http://llm-proxy-${i}.llm-proxy-nodes:8080`)

t.test(
  'every object is what Kubernetes has a schema for, and all that deploy.yaml has is there',
  async (t) => {
    for (const object of objects) {
      const models: Record<string, new (data: object) => { validate(): void }> = await import(
        `kubernetes-models/${object.apiVersion}`
      )
      t.doesNotThrow(
        () => new models[object.kind!]!(object).validate(),
        `${object.kind} ${object.metadata!.name}`,
      )
    }
    for (const { kind, metadata } of OBJECTS)
      t.ok(objects.some((each) => each.kind === kind && each.metadata!.name === metadata!.name))
    t.notMatch(TEXT, /^[^#]*(: [&*]\w|<<:)/m, 'no alias')
  },
)

t.test('each pod is the node of its ordinal, under a name of the service without an address', async (t) => {
  t.equal(nodes.replicas, COUNT)
  const service = objectOf('Service', nodes.serviceName!, objects).spec!
  t.match(service, { clusterIP: 'None', publishNotReadyAddresses: true, selector: labelsOf('proxy') })
  const keys = {
    LLM_PROXY_ADMIN_KEY: 'admin-0123456789abcdef',
    LLM_PROXY_WORKER_KEY: 'worker-0123456789abcdef',
  }
  const config = loadConfig(SERVE, {}, { ...settings, ...keys })
  t.doesNotThrow(() => checkServeConfig(config))
  for (let i = 0; i < COUNT; i += 1)
    t.strictSame(parseNode(config.node!, `llm-proxy-${i}`), { number: i + 1, of: COUNT })
})

t.test(
  'workers dial every node, the front asks every node, and the balancer is what clients know',
  async (t) => {
    const [worker] = objectOf('Deployment', 'llm-proxy-worker', objects).spec!.template.spec!.containers
    const environment = Object.fromEntries(worker!.env!.map(({ name, value }) => [name, value]))
    t.strictSame(loadConfig(WORKER, {}, environment).proxyUrls, ['dns+http://llm-proxy-nodes:8080'])
    const [front] = objectOf('Deployment', 'llm-proxy-front', objects).spec!.template.spec!.containers
    const asked = front!.args!.flatMap((each, i, all) => (all[i - 1] === '--node-url' ? [each] : []))
    t.strictSame(loadConfig(FRONT, { nodeUrls: asked }, {}).nodeUrls, urls)
    t.equal(front!.image, nodes.template.spec!.containers[0]!.image)
    t.strictSame(objectOf('Service', 'llm-proxy-server', objects).spec!.selector, labelsOf('balancer'))
    const file = objectOf('ConfigMap', 'llm-proxy-balancer', objects).data!['haproxy.cfg']!
    for (const url of [...urls, 'http://llm-proxy-front:8090'])
      t.match(file, ` ${url.slice('http://'.length)} check`)
    t.match(file, `mod(${COUNT})`)
    t.match(file, 'resolvers names', 'a pod that is started anew is found again')
  },
)

t.test('only the balancer is reached from outside, and who dials a node may', async (t) => {
  const from = (name: string) => objectOf('NetworkPolicy', name, objects).spec!.ingress![0]!.from!
  const components = (name: string) =>
    from(name).map(({ podSelector }) => podSelector?.matchLabels?.['app.kubernetes.io/component'])
  t.strictSame(components('llm-proxy'), ['worker', 'balancer', 'front'])
  t.strictSame(components('llm-proxy-front'), ['balancer'])
  const before = objectOf('NetworkPolicy', 'llm-proxy').spec!.ingress![0]!.from!
  t.strictSame(from('llm-proxy-balancer'), before.slice(1), 'agents and trainers, as before')
})

t.test('a copy that lacks an object is refused by name', async (t) => {
  t.throws(() => severalNodes(SOURCE.replace('kind: StatefulSet', 'kind: DaemonSet'), 2), {
    message: 'there is no StatefulSet llm-proxy',
  })
})
