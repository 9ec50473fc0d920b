import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { VERSION } from '../../../src/base/version.ts'
import { checkServeConfig } from '../../../src/proxy/config/check-serve.ts'
import { loadConfig } from '../../../src/proxy/config/load.ts'
import { SERVE } from '../../../src/proxy/config/options/serve.ts'
import { WORKER } from '../../../src/proxy/config/options/worker.ts'
import { checkRules, createKeys, findUnknownFields, getParts } from '../../helpers/deploy-rules.ts'
import { getObject, type KubernetesObject, OBJECTS, readObjects } from '../../helpers/deploy-yaml.ts'
import { ROOT } from '../../helpers/dockerfile.ts'
import { parseCommandBlocks, runBlock } from '../../helpers/documented-commands.ts'

const keys = createKeys('postgres://u:p@db:5432/d')
const placeholders = getObject('Secret', 'llm-proxy-keys').stringData!
const { proxy, settings, proxyPod, workerPod, proxyContainer, config } = getParts(OBJECTS, keys)

t.test('its objects follow the deployment rules', (t) => checkRules(t, OBJECTS, keys))

t.test('a misspelt field is detected', async (t) => {
  const misspelt = { ...getObject('Service', 'llm-proxy-server'), spec: { port: [] } }
  t.match(findUnknownFields(t.testdir(), [misspelt as KubernetesObject]), [
    /"port".* does not exist in type 'IServiceSpec'/,
  ])
})

t.test('no component starts while one of its keys is a placeholder', async (t) => {
  t.strictSame(Object.keys(placeholders), Object.keys(keys))
  for (const [name, placeholder] of Object.entries(placeholders)) {
    const load = () => loadConfig(SERVE, {}, { ...settings, ...keys, [name]: placeholder })
    t.throws(load, { code: 'config_invalid', message: `${name} still has its placeholder` })
  }
  const { LLM_PROXY_WORKER_KEY } = placeholders
  t.throws(() => loadConfig(WORKER, {}, { LLM_PROXY_WORKER_KEY }), { code: 'config_invalid' })
})

t.test('the README describes a copy of it that starts', async (t) => {
  const block = parseCommandBlocks(readFileSync(join(ROOT, 'README.md'), 'utf8')).find(({ script }) =>
    script.includes('my-deploy.yaml'),
  )
  const cwd = t.testdir({ 'deploy.yaml': readFileSync(join(ROOT, 'deploy.yaml'), 'utf8') })
  t.match(await runBlock(block!.script, cwd), { code: 0, output: '' })
  const copy = readObjects(join(cwd, 'my-deploy.yaml'))
  const own = getObject('Secret', 'llm-proxy-keys', copy).stringData!
  t.doesNotThrow(() => checkServeConfig(loadConfig(SERVE, {}, { ...settings, ...own })))
  const pod = getObject('Deployment', 'llm-proxy', copy).spec!.template.spec!
  t.equal(pod.containers[0]!.image, `registry.example.com/llm-proxy:${VERSION}`)
})

t.test('the engine has the version and the flags that the gate runs', async (t) => {
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

t.test(
  'pods have no state to lose: at least two share one database, and they are replaced one at a time',
  async (t) => {
    const { minReplicas, maxReplicas, scaleTargetRef } = getObject('HorizontalPodAutoscaler', 'llm-proxy')
      .spec!
    t.ok(minReplicas! >= 2 && maxReplicas > minReplicas!)
    t.match(scaleTargetRef, { kind: 'Deployment', name: 'llm-proxy' })
    const { maxUnavailable, selector } = getObject('PodDisruptionBudget', 'llm-proxy').spec!
    t.equal(maxUnavailable, 1)
    t.strictSame(selector!.matchLabels, proxy.template.metadata!.labels)
    t.ok(config.db.startsWith('postgres://'))
    t.strictSame(proxyContainer.volumeMounts, [
      { name: 'data', mountPath: '/data' },
      { name: 'tmp', mountPath: '/tmp' },
    ])
    t.ok(proxyPod.volumes!.every(({ emptyDir }) => emptyDir))
  },
)

t.test('no alias and no merge key, because not every YAML reader supports them', async (t) => {
  t.notMatch(readFileSync(join(ROOT, 'deploy.yaml'), 'utf8'), /^[^#]*(: [&*]\w|<<:)/m)
})
