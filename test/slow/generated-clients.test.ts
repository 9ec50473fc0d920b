/** Clients that are generated from openapi.json, against the proxy that serves it. */
import { execFile } from 'node:child_process'
import { cpSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { hasPython, installFromNpm, installFromPyPI } from '../agents/parts/install.ts'
import { KEYS } from '../helpers/keys.ts'
import { startProxy } from '../helpers/proxy.ts'
import { ONLY_FULL } from '../helpers/tier.ts'

const HERE = import.meta.dirname
const ROOT = join(HERE, '../..')
const LIMIT_MS = 120_000
const [ADMIN_KEY] = KEYS.adminKeys
const run = (command: string, args: string[], env: NodeJS.ProcessEnv = {}) =>
  promisify(execFile)(command, args, { env: { ...process.env, ...env }, timeout: LIMIT_MS })

async function startProxyWithDocument(t: Test) {
  const folder = t.testdir({})
  const proxy = await startProxy(t, { db: 'memory', ...KEYS })
  const document = join(folder, 'openapi.json')
  writeFileSync(document, JSON.stringify(await proxy.get('/openapi.json')))
  return { folder, document, url: proxy.url }
}

t.test('openapi-python-client generates a client that works', async (t) => {
  if (!(await hasPython())) {
    t.pass('it is not tested', { skip: 'there is no python3 with venv' })
    return
  }
  const installed = await installFromPyPI('openapi-python-client')
  const { folder, document, url } = await startProxyWithDocument(t)
  const config = join(folder, 'config.yaml')
  writeFileSync(config, 'post_hooks: []\n')
  const generated = join(folder, 'generated')
  const python = join(installed.folder, 'bin/python')
  const generation = await run(python, [
    join(installed.folder, 'bin/openapi-python-client'),
    ...['generate', '--path', document, '--config', config, '--output-path', generated],
  ])
  // The generator does not support streams of lines, and supports everything else.
  const unsupported = [...(generation.stdout + generation.stderr).matchAll(/WARNING parsing (\S+ \S+)/g)].map(
    ([, route]) => route,
  )
  const streams = ['GET /events', 'GET /sessions/{sessionId}/export', 'GET /sessions/{sessionId}/live']
  t.strictSame(unsupported.sort(), streams)
  const program = join(HERE, 'generated/client.py')
  const env = { GENERATED: generated, PROXY_URL: url, PROXY_KEY: ADMIN_KEY }
  t.match((await run(python, [program], env)).stdout, /^done\n$/)
})

t.test(
  'openapi-typescript generates types that a program compiles with and the proxy conforms to',
  { skip: ONLY_FULL },
  async (t) => {
    const generator = await installFromNpm('openapi-typescript')
    const client = await installFromNpm('openapi-fetch')
    const { folder, document, url } = await startProxyWithDocument(t)
    const cli = join(generator.folder, 'node_modules/openapi-typescript/bin/cli.js')
    await run(process.execPath, [cli, document, '--output', join(folder, 'api.d.ts')])
    cpSync(join(HERE, 'generated/client.ts'), join(folder, 'program.ts'))
    symlinkSync(join(client.folder, 'node_modules'), join(folder, 'node_modules'))
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
    const compilerOptions = {
      ...{ strict: true, noEmit: true, target: 'esnext', module: 'nodenext', skipLibCheck: true },
      ...{
        allowImportingTsExtensions: true,
        noUncheckedIndexedAccess: true,
        exactOptionalPropertyTypes: true,
      },
      ...{ types: ['node'], typeRoots: [join(ROOT, 'node_modules/@types')] },
    }
    writeFileSync(
      join(folder, 'tsconfig.json'),
      JSON.stringify({ compilerOptions, files: ['program.ts', 'api.d.ts'] }),
    )
    const checked = await run(join(ROOT, 'node_modules/.bin/tsc'), ['-p', folder]).catch(
      ({ stdout }: { stdout: string }) => ({ stdout }),
    )
    t.equal(checked.stdout, '', 'the program compiles with the types')
    const { stdout } = await run(process.execPath, [join(folder, 'program.ts'), url, ADMIN_KEY!])
    t.equal(stdout, 'done\n')
  },
)
