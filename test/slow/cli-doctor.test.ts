/** `llm-proxy doctor`: its findings for working and broken setups. */
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { startEngine } from '../helpers/engine.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'

interface Finding {
  about: string
  state: string
  seen: string
  remedy?: string
}

async function runDoctor(t: Test, ...args: string[]) {
  const db = ['--db', join(t.testdir({}), 'turns.db')]
  const { code, stdout, stderr } = await runLlmProxy(['doctor', '--json', '--port', '0', ...db, ...args])
  t.equal(stderr, '')
  const findings = JSON.parse(stdout) as Finding[]
  return {
    code,
    findings,
    find: (about: string) => findings.find((finding) => finding.about.startsWith(about)),
  }
}

t.test('a working setup is all ok, token mode included', async (t) => {
  const engine = await startEngine(t)
  const { code, findings, find } = await runDoctor(t, '--engine-url', engine.url, '--tokenizer', 'embedded')
  t.same(
    findings.filter(({ about, state }) => state !== 'ok' && about !== 'disk'),
    [],
  )
  t.equal(code, 0)
  t.match(find('engine '), { seen: /\d ids and logprobs; \d+ prompt ids, rendered in token mode/ })
  t.match(find('token mode'), { seen: /^the same \d+ prompt ids/ })
  t.match(find('logprobs'), { seen: /raw_logprobs/ })
  t.match(find('disk'), { seen: /syncs a write in/ })
})

t.test('logprobs of another distribution than the declared one are a failure', async (t) => {
  const engine = await startEngine(t)
  const option = ['--logprobs-mode', 'processed_logprobs']
  const { code, find } = await runDoctor(t, '--engine-url', engine.url, ...option)
  t.match(find('logprobs'), { state: 'failure', remedy: 'give --logprobs-mode raw_logprobs' })
  t.equal(code, 1)
})

t.test('a model whose tool calls no parser reads is a warning', async (t) => {
  const engine = await startEngine(t)
  // Beside the test's own folder, which is recreated for the database.
  const model = join(t.testdir({}), '..', 'cli-doctor-model')
  t.teardown(() => rmSync(model, { recursive: true }))
  cpSync(join(import.meta.dirname, '../../src/embedded/model'), model, { recursive: true })
  const file = join(model, 'tokenizer_config.json')
  const config = JSON.parse(readFileSync(file, 'utf8')) as { chat_template: string }
  config.chat_template = config.chat_template.replaceAll('tool_call>', 'unheard_of>')
  writeFileSync(file, JSON.stringify(config))
  const { code, find } = await runDoctor(t, '--engine-url', engine.url, '--tokenizer', model)
  t.match(find('tool calls'), { state: 'warning', seen: /calls stay text/, remedy: /token-mode.md/ })
  t.equal(code, 0)
})

t.test('an engine that renders tools differently is a warning with the first difference', async (t) => {
  const engine = await startEngine(t)
  const server = createServer(async (request, response) => {
    const text = (await Array.fromAsync(request)).join('')
    const body = text === '' ? undefined : JSON.parse(text)
    // As SGLang 0.5.23 does: its `Tool` has the field, and its chat route passes all fields to the template.
    const isShown = request.url === '/tokenize' && body.tools
    if (isShown) body.tools = body.tools.map((tool: object) => ({ ...tool, defer_loading: null }))
    const reply = await fetch(engine.url + request.url, {
      method: request.method!,
      headers: { 'content-type': 'application/json' },
      ...(body && { body: JSON.stringify(body) }),
    })
    response.writeHead(reply.status, {
      'content-type': reply.headers.get('content-type') ?? 'text/plain',
    })
    response.end(await reply.text())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const { code, findings, find } = await runDoctor(t, '--engine-url', url, '--tokenizer', 'embedded')
  t.equal(code, 0)
  t.match(find('token mode'), { state: 'ok' })
  t.match(
    findings.find(({ about }) => about === 'engine'),
    {
      state: 'warning',
      seen: /^prompt mismatch for a chat with a tool: the engine's chat endpoint renders \d+ tokens/,
      remedy: /docs\/engines.md/,
    },
  )
})

t.test('an unreachable engine, or one that reports no ids, is a failure with a remedy', async (t) => {
  const unavailable = await runDoctor(t, '--engine-url', 'http://127.0.0.1:1')
  t.equal(unavailable.code, 1)
  t.match(unavailable.find('engine 127.0.0.1:1'), { state: 'failure', remedy: /--engine-url/ })
  const vllm = await startFakeVllm()
  t.teardown(() => vllm.close())
  vllm.rejectIds(true)
  const silent = await runDoctor(t, '--engine-url', vllm.url)
  t.equal(silent.code, 1)
  t.match(silent.find('engine '), { state: 'failure' })
})

t.test('unauthenticated access is a warning, contradictory options are failures', async (t) => {
  const rejected = await runDoctor(t, '--mode', 'relay', '--host', '0.0.0.0')
  t.match(rejected.findings, [{ about: 'options', state: 'failure', seen: /--open/ }])
  t.equal(rejected.code, 1)
  const open = await runDoctor(t, '--mode', 'relay', '--host', '0.0.0.0', '--open')
  t.match(open.find('keys'), { state: 'warning', remedy: /--admin-key/ })
  t.match(open.find('tls'), { state: 'warning' })
  const wrong = await runDoctor(t, '--mode', 'relay', '--engine-url', 'http://127.0.0.1:1')
  t.match(wrong.findings, [{ about: 'options', state: 'failure' }])
  const detail = await runDoctor(t, '--record', 'masks')
  const seen = /^--record: 'masks' cannot be recorded: (?!.*'masks')/
  t.match(detail.findings.at(-1), { about: 'options', state: 'failure', seen })
})

t.test('the text output has a line for each finding', async (t) => {
  const { stdout } = await runLlmProxy(['doctor', '--port', '0', '--db', 'memory', '--mode', 'relay'])
  t.match(stdout, /^ok {7}options: relay mode\nok {7}keys: /)
  t.match(stdout, /^warning {2}disk: sessions end with the process: give --db a file/m)
})

t.test('features of the model that the engine lacks or has not enabled are a warning', async (t) => {
  const engine = await startEngine(t)
  const args = ['--engine-kind', 'vllm', '--context-length', '1000000', '--record', 'sampling_mask']
  const { code, findings } = await runDoctor(
    t,
    '--engine-url',
    engine.url,
    '--tokenizer',
    'embedded',
    ...args,
  )
  t.equal(code, 0)
  t.match(
    findings.find(({ about }) => about === 'context'),
    { state: 'warning', seen: /^the engine serves \d+ tokens, and the model has 1000000$/ },
  )
  t.match(
    findings.find(({ about }) => about === 'engine'),
    { state: 'warning', seen: /--enable-scale-out/ },
  )
})
