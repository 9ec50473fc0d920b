/** Rules for the Kubernetes objects of llm-proxy: those of deploy.yaml, and those derived from it. */
import { writeFileSync } from 'node:fs'
import { BlockList } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import { API } from 'typescript/unstable/sync'
import { VERSION } from '../../src/base/version.ts'
import { COMMANDS } from '../../src/commands.ts'
import { checkServeConfig } from '../../src/proxy/config/check-serve.ts'
import { loadConfig, rejectUnknownEnv } from '../../src/proxy/config/load.ts'
import { SERVE, type ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { WORKER } from '../../src/proxy/config/options/worker.ts'
import { getObject, type KubernetesObject } from './deploy-yaml.ts'
import { readDockerfile } from './dockerfile.ts'

const { image } = readDockerfile()

/**
 * Returns keys as an operator creates them.
 * @param db absent: the settings name the database
 */
export function createKeys(db?: string): Record<string, string> {
  const names = ['LLM_PROXY_ADMIN_KEY', 'LLM_PROXY_WORKER_KEY', 'LLM_PROXY_AGENT_KEY_SECRET']
  const keys = Object.fromEntries(names.map((name) => [name, `${name}-0123456789abcdef`]))
  return db === undefined ? keys : { ...keys, LLM_PROXY_DB: db }
}

/**
 * Returns the proxy's and the worker's objects, and the proxy's configuration.
 * @param keys of the Secret that the proxy receives
 */
export function getParts(objects: readonly KubernetesObject[], keys: Record<string, string>) {
  const proxy = getObject('Deployment', 'llm-proxy', objects).spec!
  const worker = getObject('Deployment', 'llm-proxy-worker', objects).spec!
  const settings = getObject('ConfigMap', 'llm-proxy', objects).data!
  const [proxyPod, workerPod] = [proxy.template.spec!, worker.template.spec!]
  const [proxyContainer, workerContainer] = [proxyPod.containers[0]!, workerPod.containers[0]!]
  const config: ServeConfig = loadConfig(SERVE, {}, { ...image.env, ...settings, ...keys })
  return { proxy, worker, settings, proxyPod, workerPod, proxyContainer, workerContainer, config }
}

/** Finds unknown fields with the types: the schemas permit them, since a server of a newer version may know them. */
export function findUnknownFields(directory: string, objects: readonly KubernetesObject[]): string[] {
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

/**
 * Checks the rules.
 * @param keys of the Secret that the proxy receives
 */
export async function checkRules(
  t: Test,
  objects: readonly KubernetesObject[],
  keys: Record<string, string>,
): Promise<void> {
  const parts = getParts(objects, keys)
  const { proxy, worker, settings, proxyPod, workerPod, proxyContainer, workerContainer, config } = parts
  await t.test('every object is valid by the schema of Kubernetes', async (t) => {
    for (const object of objects) {
      const models: Record<string, new (data: object) => { validate(): void }> = await import(
        `kubernetes-models/${object.apiVersion}`
      )
      const model = new models[object.kind!]!(object)
      t.doesNotThrow(() => model.validate(), `${object.kind} ${object.metadata!.name}`)
    }
  })

  await t.test('no field is misspelt', async (t) => {
    t.strictSame(findUnknownFields(t.testdir(), objects), [])
  })

  await t.test('every setting is an option, and together they are a configuration that serves', async (t) => {
    const env = { ...settings, ...keys }
    t.doesNotThrow(() => rejectUnknownEnv(COMMANDS, env))
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
    t.doesNotThrow(() => rejectUnknownEnv(COMMANDS, workerEnv))
    const { proxyUrls, engineUrls } = loadConfig(WORKER, {}, workerEnv)
    t.strictSame(proxyUrls, [`dns+http://llm-proxy-nodes:${config.port}`])
    t.strictSame(engineUrls, ['http://127.0.0.1:8000'])
  })

  await t.test('a worker receives only its own key', async (t) => {
    const secrets = (workerContainer.env ?? []).flatMap(({ name, valueFrom }) =>
      valueFrom?.secretKeyRef ? [[name, valueFrom.secretKeyRef.key]] : [],
    )
    t.strictSame(secrets, [['LLM_PROXY_WORKER_KEY', 'LLM_PROXY_WORKER_KEY']])
    t.notOk(workerContainer.envFrom)
  })

  await t.test(
    'one port: of the option, the image, the container, the service and the network policy; probes have their own',
    async (t) => {
      t.equal(image.port, String(config.port))
      t.strictSame(proxyContainer.ports, [
        { name: 'http', containerPort: config.port },
        { name: 'health', containerPort: config.healthPort },
      ])
      for (const name of ['llm-proxy-server', 'llm-proxy-nodes']) {
        t.strictSame(getObject('Service', name, objects).spec!.ports, [
          { name: 'http', port: config.port, targetPort: 'http' },
        ])
      }
      const { ingress } = getObject('NetworkPolicy', 'llm-proxy', objects).spec!
      t.strictSame(
        ingress!.map(({ ports }) => ports),
        [[{ port: config.port }]],
      )
      t.notOk(
        getObject('NetworkPolicy', 'llm-proxy-worker', objects).spec!.ingress,
        'nothing connects to a worker',
      )
      t.strictSame(proxyContainer.readinessProbe!.httpGet, { path: '/health', port: 'health' })
      // A probe that restarts the container must not fail because the database is unavailable.
      for (const probe of ['startupProbe', 'livenessProbe'] as const)
        t.strictSame(proxyContainer[probe]!.httpGet, { path: '/health/live', port: 'health' })
    },
  )

  await t.test('every selector selects the intended pods', async (t) => {
    const proxyLabels = proxy.template.metadata!.labels
    const workerLabels = worker.template.metadata!.labels
    t.not(proxyLabels!['app.kubernetes.io/component'], workerLabels!['app.kubernetes.io/component'])
    t.strictSame(proxy.selector.matchLabels, proxyLabels)
    t.strictSame(worker.selector.matchLabels, workerLabels)
    for (const name of ['llm-proxy-server', 'llm-proxy-nodes'])
      t.strictSame(getObject('Service', name, objects).spec!.selector, proxyLabels)
    const policy = getObject('NetworkPolicy', 'llm-proxy', objects).spec!
    t.strictSame(policy.podSelector!.matchLabels, proxyLabels)
    t.strictSame(
      policy.ingress![0]!.from!.slice(0, 2).map(({ podSelector }) => podSelector!.matchLabels),
      [workerLabels, proxyLabels],
    )
    t.strictSame(
      getObject('NetworkPolicy', 'llm-proxy-worker', objects).spec!.podSelector!.matchLabels,
      workerLabels,
    )
  })

  await t.test(
    'both may reach proxies, DNS and the hub; the proxy also its database; neither a private address',
    async (t) => {
      const own = getObject('NetworkPolicy', 'llm-proxy', objects).spec!
      t.ok(own.policyTypes!.includes('Egress'))
      const { policyTypes, egress } = getObject('NetworkPolicy', 'llm-proxy-worker', objects).spec!
      t.ok(policyTypes!.includes('Egress'))
      const toProxies = {
        to: [{ podSelector: { matchLabels: proxy.template.metadata!.labels } }],
        ports: [{ port: config.port }],
      }
      const [proxies, ...others] = egress!
      const toDatabase = config.db.startsWith('postgres:') ? [{ ports: [{ port: 5432 }] }] : []
      t.strictSame(own.egress, [toProxies, ...toDatabase, ...others])
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

  await t.test('token mode has the tokenizer of the model that the engine serves', async (t) => {
    const [engine] = workerPod.initContainers!
    t.strictSame(engine!.command, ['vllm', 'serve', config.tokenizer])
    t.ok(settings.HF_HOME!.startsWith('/data/'))
  })

  await t.test('running requests have their grace period before a pod is terminated', async (t) => {
    const graceS = config.shutdownGraceMs / 1000
    t.ok(proxyPod.terminationGracePeriodSeconds! >= graceS + 15)
    const { periodSeconds, failureThreshold } = proxyContainer.livenessProbe!
    t.ok(periodSeconds! * failureThreshold! > graceS, 'the liveness probe does not kill a draining proxy')
    const { shutdownGraceMs } = loadConfig(
      WORKER,
      {},
      {
        LLM_PROXY_SHUTDOWN_GRACE: workerContainer.env!.find(({ name }) => name === 'LLM_PROXY_SHUTDOWN_GRACE')
          ?.value,
      },
    )
    t.ok(
      shutdownGraceMs >= config.shutdownGraceMs,
      'a worker runs longer than the requests of a draining proxy',
    )
    t.ok(workerPod.terminationGracePeriodSeconds! >= shutdownGraceMs / 1000 + 15)
    t.equal(workerPod.initContainers![0]!.restartPolicy, 'Always', 'the engine is a sidecar, which ends last')
  })

  await t.test(
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

  await t.test('everything is in the one namespace', async (t) => {
    const { name } = getObject('Namespace', 'llm-proxy', objects).metadata!
    for (const { kind, metadata } of objects) if (kind !== 'Namespace') t.equal(metadata!.namespace, name)
  })
}
