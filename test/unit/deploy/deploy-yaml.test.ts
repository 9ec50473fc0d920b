import { readFileSync, writeFileSync } from 'node:fs'
import { BlockList } from 'node:net'
import { join } from 'node:path'
import type { IContainer, IPodSpec } from 'kubernetes-models/v1'
import t from 'tap'
import { API } from 'typescript/unstable/sync'
import { VERSION } from '../../../src/base/version.ts'
import { checkServeConfig } from '../../../src/proxy/config/check-serve.ts'
import { COMMANDS } from '../../../src/proxy/config/commands.ts'
import { loadConfig, refuseUnknownEnv } from '../../../src/proxy/config/load.ts'
import { SERVE, type ServeConfig } from '../../../src/proxy/config/options/serve.ts'
import { WORKER } from '../../../src/proxy/config/options/worker.ts'
import { type KubernetesObject, OBJECTS, objectOf, readObjects } from '../../helpers/deploy-yaml.ts'
import { ROOT, readDockerfile } from '../../helpers/dockerfile.ts'
import { commandBlocks, runBlock } from '../../helpers/documented-commands.ts'

const { image } = readDockerfile()
const proxy = objectOf('Deployment', 'llm-proxy').spec!
const worker = objectOf('Deployment', 'llm-proxy-worker').spec!
const settings = objectOf('ConfigMap', 'llm-proxy').data!
const placeholders = objectOf('Secret', 'llm-proxy-keys').stringData!

const proxyPod: IPodSpec = proxy.template.spec!
const workerPod: IPodSpec = worker.template.spec!
const proxyContainer: IContainer = proxyPod.containers[0]!
const workerContainer: IContainer = workerPod.containers[0]!

/** What the container runs with, once whoever deploys it has put keys there. */
const keys = Object.fromEntries(
  Object.keys(placeholders).map((name) => [
    name,
    name === 'LLM_PROXY_DB' ? 'postgres://u:p@db:5432/d' : `${name}-0123456789abcdef`,
  ]),
)
const config: ServeConfig = loadConfig(SERVE, {}, { ...image.env, ...settings, ...keys })

t.test('every object is what Kubernetes has a schema for', async (t) => {
  for (const object of OBJECTS) {
    const models: Record<string, new (data: object) => { validate(): void }> = await import(
      `kubernetes-models/${object.apiVersion}`
    )
    const model = new models[object.kind!]!(object)
    t.doesNotThrow(() => model.validate(), `${object.kind} ${object.metadata!.name}`)
  }
})

/** The schemas permit fields that they do not know, as a server of a newer version may; the types do not. */
function unknownFields(directory: string, objects: readonly KubernetesObject[]): string[] {
  const source = objects.map(
    ({ apiVersion, kind, ...rest }, index) =>
      `import type { I${kind} as Kind${index} } from 'kubernetes-models/${apiVersion}'\n` +
      `export const object${index}: Kind${index} = ${JSON.stringify({ apiVersion, kind, ...rest })}\n`,
  )
  writeFileSync(join(directory, 'objects.mts'), source.join(''))
  const compilerOptions = { strict: true, skipLibCheck: true, module: 'nodenext', types: [] }
  const project = join(directory, 'tsconfig.json')
  writeFileSync(project, JSON.stringify({ compilerOptions, files: ['objects.mts'] }))
  const compiler = new API({ cwd: directory })
  try {
    const [opened] = compiler.updateSnapshot({ openProject: project }).getProjects()
    return opened!.program.getSemanticDiagnostics().map(({ text }) => text)
  } finally {
    compiler.close()
  }
}

t.test('no field is misspelt', async (t) => {
  t.strictSame(unknownFields(t.testdir(), OBJECTS), [])
  const misspelt = { ...objectOf('Service', 'llm-proxy-server'), spec: { port: [] } }
  t.match(unknownFields(t.testdir(), [misspelt as KubernetesObject]), [
    /"port".* does not exist in type 'IServiceSpec'/,
  ])
})

t.test('every setting is an option, and together they are a configuration that serves', async (t) => {
  const env = { ...settings, ...keys }
  t.doesNotThrow(() => refuseUnknownEnv(COMMANDS, env))
  t.doesNotThrow(() => checkServeConfig(config))
  t.match(config, {
    mode: 'relay',
    host: '0.0.0.0',
    adminKeys: [/./],
    workerKeys: [/./],
    agentKeySecrets: [/./],
  })
  t.strictSame(proxyContainer.envFrom, [
    { configMapRef: { name: 'llm-proxy' } },
    { secretRef: { name: 'llm-proxy-keys' } },
  ])

  const workerEnv = Object.fromEntries((workerContainer.env ?? []).map(({ name, value }) => [name, value]))
  t.doesNotThrow(() => refuseUnknownEnv(COMMANDS, workerEnv))
  const { proxyUrls, engineUrls } = loadConfig(WORKER, {}, workerEnv)
  t.strictSame(proxyUrls, [`dns+http://llm-proxy-nodes:${config.port}`])
  t.strictSame(engineUrls, ['http://127.0.0.1:8000'])
})

t.test('with a placeholder in the place of any key nothing starts', async (t) => {
  for (const [name, placeholder] of Object.entries(placeholders)) {
    const load = () => loadConfig(SERVE, {}, { ...settings, ...keys, [name]: placeholder })
    t.throws(load, { code: 'config_invalid', message: `${name} still has its placeholder` })
  }
  const { LLM_PROXY_WORKER_KEY } = placeholders
  t.throws(() => loadConfig(WORKER, {}, { LLM_PROXY_WORKER_KEY }), { code: 'config_invalid' })
})

t.test('the README makes a copy of it that starts', async (t) => {
  const block = commandBlocks(readFileSync(join(ROOT, 'README.md'), 'utf8')).find(({ script }) =>
    script.includes('my-deploy.yaml'),
  )
  const cwd = t.testdir({ 'deploy.yaml': readFileSync(join(ROOT, 'deploy.yaml'), 'utf8') })
  t.match(await runBlock(block!.script, cwd), { code: 0, output: '' })
  const copy = readObjects(join(cwd, 'my-deploy.yaml'))
  const own = objectOf('Secret', 'llm-proxy-keys', copy).stringData!
  t.doesNotThrow(() => checkServeConfig(loadConfig(SERVE, {}, { ...settings, ...own })))
  const pod = objectOf('Deployment', 'llm-proxy', copy).spec!.template.spec!
  t.equal(pod.containers[0]!.image, `registry.example.com/llm-proxy:${VERSION}`)
})

t.test('a worker knows no key but its own', async (t) => {
  const secrets = (workerContainer.env ?? []).flatMap(({ name, valueFrom }) =>
    valueFrom?.secretKeyRef ? [[name, valueFrom.secretKeyRef.key]] : [],
  )
  t.strictSame(secrets, [['LLM_PROXY_WORKER_KEY', 'LLM_PROXY_WORKER_KEY']])
  t.notOk(workerContainer.envFrom)
})

t.test(
  'one port: of the option, the image, the container, the service and the network policy; probes have their own',
  async (t) => {
    t.equal(image.port, String(config.port))
    t.strictSame(proxyContainer.ports, [
      { name: 'http', containerPort: config.port },
      { name: 'health', containerPort: config.healthPort },
    ])
    for (const name of ['llm-proxy-server', 'llm-proxy-nodes']) {
      t.strictSame(objectOf('Service', name).spec!.ports, [
        { name: 'http', port: config.port, targetPort: 'http' },
      ])
    }
    const { ingress } = objectOf('NetworkPolicy', 'llm-proxy').spec!
    t.strictSame(
      ingress!.map(({ ports }) => ports),
      [[{ port: config.port }]],
    )
    t.notOk(objectOf('NetworkPolicy', 'llm-proxy-worker').spec!.ingress, 'nobody dials a worker')
    for (const probe of ['startupProbe', 'readinessProbe', 'livenessProbe'] as const)
      t.strictSame(proxyContainer[probe]!.httpGet, { path: '/health', port: 'health' })
  },
)

t.test('everything that selects pods selects those that are meant', async (t) => {
  const proxyLabels = proxy.template.metadata!.labels
  const workerLabels = worker.template.metadata!.labels
  t.not(proxyLabels!['app.kubernetes.io/component'], workerLabels!['app.kubernetes.io/component'])
  t.strictSame(proxy.selector.matchLabels, proxyLabels)
  t.strictSame(worker.selector.matchLabels, workerLabels)
  for (const name of ['llm-proxy-server', 'llm-proxy-nodes'])
    t.strictSame(objectOf('Service', name).spec!.selector, proxyLabels)
  t.match(objectOf('HorizontalPodAutoscaler', 'llm-proxy').spec!.scaleTargetRef, {
    kind: 'Deployment',
    name: 'llm-proxy',
  })
  t.strictSame(objectOf('PodDisruptionBudget', 'llm-proxy').spec!.selector!.matchLabels, proxyLabels)
  const policy = objectOf('NetworkPolicy', 'llm-proxy').spec!
  t.strictSame(policy.podSelector!.matchLabels, proxyLabels)
  t.strictSame(
    policy.ingress![0]!.from!.slice(0, 2).map(({ podSelector }) => podSelector!.matchLabels),
    [workerLabels, proxyLabels],
  )
  t.strictSame(objectOf('NetworkPolicy', 'llm-proxy-worker').spec!.podSelector!.matchLabels, workerLabels)
})

t.test(
  'both dial proxies, names and the hub; the proxy the database too; neither any private address',
  async (t) => {
    const own = objectOf('NetworkPolicy', 'llm-proxy').spec!
    t.ok(own.policyTypes!.includes('Egress'))
    const { policyTypes, egress } = objectOf('NetworkPolicy', 'llm-proxy-worker').spec!
    t.ok(policyTypes!.includes('Egress'))
    const toProxies = {
      to: [{ podSelector: { matchLabels: proxy.template.metadata!.labels } }],
      ports: [{ port: config.port }],
    }
    const [proxies, ...others] = egress!
    t.strictSame(own.egress, [toProxies, { ports: [{ port: 5432 }] }, ...others])
    t.strictSame(proxies, toProxies)
    const [names, hub, ...more] = others
    t.strictSame(more, [])
    t.ok(names!.ports!.every(({ port }) => port === 53))
    t.strictSame(hub!.ports, [{ port: 443 }])
    const closed = new BlockList()
    for (const block of hub!.to![0]!.ipBlock!.except!)
      closed.addSubnet(block.split('/')[0]!, Number(block.split('/')[1]))
    for (const address of [
      '169.254.169.254',
      '10.1.2.3',
      '172.31.0.1',
      '192.168.1.1',
      '127.0.0.1',
      '100.100.100.200',
    ])
      t.ok(closed.check(address), address)
    t.notOk(closed.check('18.164.174.1'))
  },
)

t.test('token mode has the tokenizer of the model that the engine serves', async (t) => {
  const [engine] = workerPod.initContainers!
  t.strictSame(engine!.command, ['vllm', 'serve', config.tokenizer])
  t.ok(settings.HF_HOME!.startsWith('/data/'))
})

t.test('the engine is of the version, and has the flags, that the gate runs', async (t) => {
  const [engine] = workerPod.initContainers!
  const page = readFileSync(join(ROOT, 'docs/engines.md'), 'utf8')
  const [, version] = /`npm run test:vllm` and `npm run test:sglang` start vLLM ([0-9.]+) and/.exec(page)!
  t.equal(engine!.image, `vllm/vllm-openai:v${version}`)
  const [, start] = /^ {4}(VLLM_SERVER_DEV_MODE=1 vllm serve MODEL [\s\S]*?)\n\n/m.exec(page)!
  const flags = start!
    .replaceAll('\\\n', ' ')
    .split(/\s+/)
    .slice(4)
    .join(' ')
    .replaceAll(/ (?!--)/g, '=')
    .split(' ')
  for (const flag of flags) t.ok(engine!.args!.includes(flag), flag)
  t.match(engine!.env, [{ name: 'VLLM_SERVER_DEV_MODE', value: '1' }])
})

t.test('calls that run are given their time before a pod is ended', async (t) => {
  const graceS = config.shutdownGraceMs / 1000
  t.ok(proxyPod.terminationGracePeriodSeconds! >= graceS + 15)
  const { periodSeconds, failureThreshold } = proxyContainer.livenessProbe!
  t.ok(periodSeconds! * failureThreshold! > graceS, 'a proxy that drains is not taken for dead')
  const { shutdownGraceMs } = loadConfig(
    WORKER,
    {},
    { LLM_PROXY_SHUTDOWN_GRACE: workerSetting('LLM_PROXY_SHUTDOWN_GRACE') },
  )
  t.ok(shutdownGraceMs >= config.shutdownGraceMs, 'a worker outlasts the calls of a proxy that drains')
  t.ok(workerPod.terminationGracePeriodSeconds! >= shutdownGraceMs / 1000 + 15)
  t.equal(workerPod.initContainers![0]!.restartPolicy, 'Always', 'the engine is a sidecar, which ends last')
})

function workerSetting(name: string): string | undefined {
  return workerContainer.env!.find((variable) => variable.name === name)?.value
}

t.test(
  'our containers are of this version, have no privileges and write nothing but their volumes',
  async (t) => {
    for (const [container, pod] of [
      [proxyContainer, proxyPod],
      [workerContainer, workerPod],
    ] as const) {
      t.equal(container.image, `llm-proxy:${VERSION}`)
      t.match(
        { ...pod.securityContext, ...container.securityContext },
        {
          runAsNonRoot: true,
          runAsUser: 65532,
          runAsGroup: 65532,
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
          seccompProfile: { type: 'RuntimeDefault' },
        },
      )
      t.equal(pod.automountServiceAccountToken, false)
      t.ok(container.resources?.requests?.memory && container.resources.limits?.memory)
    }
    t.equal(image.user, '65532:65532')
    t.equal(proxyPod.securityContext!.fsGroup, 65532, 'the volume is writable')
  },
)

t.test(
  'nothing that counts is on a pod: two at least are on one database, and one at a time goes',
  async (t) => {
    const { minReplicas, maxReplicas } = objectOf('HorizontalPodAutoscaler', 'llm-proxy').spec!
    t.ok(minReplicas! >= 2 && maxReplicas > minReplicas!)
    t.equal(objectOf('PodDisruptionBudget', 'llm-proxy').spec!.maxUnavailable, 1)
    t.ok(config.db.startsWith('postgres://'))
    t.strictSame(proxyContainer.volumeMounts, [
      { name: 'data', mountPath: '/data' },
      { name: 'tmp', mountPath: '/tmp' },
    ])
    t.ok(proxyPod.volumes!.every(({ emptyDir }) => emptyDir))
  },
)

t.test('everything is in the one namespace', async (t) => {
  const { name } = objectOf('Namespace', 'llm-proxy').metadata!
  for (const { kind, metadata } of OBJECTS) if (kind !== 'Namespace') t.equal(metadata!.namespace, name)
})

t.test('no alias and no merge: not every tool that reads YAML knows them', async (t) => {
  t.notMatch(readFileSync(join(ROOT, 'deploy.yaml'), 'utf8'), /^[^#]*(: [&*]\w|<<:)/m)
})
