/** The claims of docs/gateway.md about rLLM's client, checked with the released client from PyPI. */
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { hasPython, installFromPyPI } from '../agents/parts/install.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy } from '../helpers/proxy.ts'

const DOCUMENT = join(import.meta.dirname, '../../docs/gateway.md')

/** Runs a script with rLLM's package, beside a proxy without engines and an unregistered engine. */
async function runScript(t: Test, script: string, env: Record<string, string> = {}): Promise<void> {
  if (!(await hasPython())) {
    t.pass("rLLM's client is not tested", { skip: 'there is no python3 with venv' })
    return
  }
  const { folder } = await installFromPyPI('rllm-model-gateway', ['openai'])
  const proxy = await startProxy(t, { awaitEngines: true, db: `${t.testdir({})}/proxy.db` })
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  const bin = join(folder, 'bin')
  const { stdout } = await promisify(execFile)(join(bin, 'python'), [join(import.meta.dirname, script)], {
    env: {
      ...process.env,
      PATH: `${bin}:${process.env.PATH}`,
      PROXY_URL: proxy.url,
      ENGINE_URL: engine.url,
      FOLDER: t.testdirName,
      ...env,
    },
    timeout: 120_000,
  })
  t.match(stdout, /\ndone\n$/)
}

t.test("rLLM's client behaves as docs/gateway.md describes", async (t) => {
  const example = /```python\n(.*?)```/s.exec(readFileSync(DOCUMENT, 'utf8'))?.[1]
  t.ok(example, 'the document has an example')
  await runScript(t, 'gateway_client.py', { EXAMPLE: example! })
})

t.test("a manager that starts a gateway on the proxy's port gets the proxy", (t) =>
  runScript(t, 'gateway_manager.py'),
)
