/** What docs/gateway.md says of rLLM's client, told by that client: the released one, as PyPI has it. */
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { hasPython, installFromPyPI } from '../agents/parts/install.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy } from '../helpers/proxy.ts'

const CLIENT = join(import.meta.dirname, 'gateway_client.py')
const DOCUMENT = join(import.meta.dirname, '../../docs/gateway.md')

t.test("rLLM's client does what docs/gateway.md says", async (t) => {
  if (!(await hasPython())) {
    t.pass('rLLM is not asked', { skip: 'there is no python3 with venv' })
    return
  }
  const { folder } = await installFromPyPI('rllm-model-gateway', ['openai'])
  const proxy = await startProxy(t, { awaitEngines: true })
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  const example = /```python\n(.*?)```/s.exec(readFileSync(DOCUMENT, 'utf8'))?.[1]
  t.ok(example, 'the document has an example')
  const { stdout } = await promisify(execFile)(join(folder, 'bin/python'), [CLIENT], {
    env: { ...process.env, PROXY_URL: proxy.url, ENGINE_URL: engine.url, EXAMPLE: example },
    timeout: 60_000,
  })
  t.match(stdout, /\ndone\n$/)
})
