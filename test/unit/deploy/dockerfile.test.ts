import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { VERSION } from '../../../src/base/version.ts'
import { COMMANDS } from '../../../src/commands.ts'
import { checkServeConfig } from '../../../src/proxy/config/check-serve.ts'
import { loadConfig, rejectUnknownEnv } from '../../../src/proxy/config/load.ts'
import { SERVE } from '../../../src/proxy/config/options/serve.ts'
import { ROOT, readDockerfile } from '../../helpers/dockerfile.ts'

const { bases, runs, image } = readDockerfile()

t.test('the image is built on the Node version of this run, and contains no Node of its own', async (t) => {
  const [major] = process.versions.node.split('.')
  const [builder, ...rest] = bases
  t.match(
    builder,
    /^rust:[\d.]+-slim-bookworm$/,
    'for the fast tokenizer, with the C library of the other stages',
  )
  t.strictSame(rest, [`node:${major}-bookworm`, 'gcr.io/distroless/cc-debian12:nonroot'])
  t.strictSame(runs, ['.ci/build-image'], 'its only step is the tested script')
})

t.test('the container listens on all addresses and records into the volume', async (t) => {
  t.doesNotThrow(() => rejectUnknownEnv(COMMANDS, image.env))
  const config = loadConfig(SERVE, {}, image.env)
  t.doesNotThrow(() => checkServeConfig(config), 'also without keys')
  const { host, port, db } = config
  t.equal(host, '0.0.0.0')
  t.equal(String(port), image.port)
  t.ok(db.startsWith(`${image.volume}/`))
  t.equal(
    image.workdir,
    image.volume,
    'as do commands that write to their working directory, such as the demo',
  )
})

t.test(
  'arguments are those of llm-proxy, the health check is built in, the user is a number and not root',
  async (t) => {
    t.strictSame(image.entrypoint, ['llm-proxy'])
    t.strictSame(image.healthcheck, ['llm-proxy', 'health'])
    // Kubernetes can verify that a numeric user is not root, but not a user's name.
    t.match(image.user, /^[1-9]\d*:[1-9]\d*$/)
    const data = image.copies.find(({ destination }) => destination === image.volume)
    t.equal(data?.owner, image.user)
  },
)

t.test('its labels are those of this version', async (t) => {
  const { description } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  t.strictSame(image.labels, {
    'org.opencontainers.image.title': 'llm-proxy',
    'org.opencontainers.image.description': description,
    'org.opencontainers.image.version': VERSION,
  })
})

t.test('the context sent to Docker has the files that the build needs, each by name', async (t) => {
  const lines = readFileSync(join(ROOT, '.dockerignore'), 'utf8').split('\n')
  const [first, ...sent] = lines.filter((line) => line !== '' && !line.startsWith('#'))
  t.equal(first, '*')
  t.match(sent.pop(), /fastokens\.node\*$/, 'except for files that were built for another platform')
  for (const line of sent) t.ok(line.startsWith('!') && existsSync(join(ROOT, line.slice(1))), line)
})
