/**
 * Token mode: the model sees the numbers of tools and calls as the agent wrote them, and as Python writes parsed ones.
 */
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'

const SCHEMA =
  '{"type":"object","properties":{"a":{"default":1000.0},"b":{"default":1e-9},"c":{"maximum":9007199254740993},' +
  '"d":{"default":null},"e":{"enum":[-0.0, 5, 2.50,"1.0"]}}}'
const SHOWN_SCHEMA =
  '{"type": "object", "properties": {"a": {"default": 1000.0}, "b": {"default": 1e-09}, ' +
  '"c": {"maximum": 9007199254740993}, "d": {"default": null}, "e": {"enum": [-0.0, 5, 2.5, "1.0"]}}}'
const SHOWN_TOOL = `{"type": "function", "function": {"name": "f", "parameters": ${SHOWN_SCHEMA}}}`

/** Numbers that the proxy itself parses may have any notation. */
const SAMPLING = '"model":"embedded","temperature":0.0,"top_p":1.0'

interface Dialect {
  path: string
  body(question: string): string
}

const FUNCTION = `{"type":"function","function":{"name":"f","parameters":${SCHEMA}}}`

const DIALECTS: Record<string, Dialect> = {
  'Chat Completions': {
    path: '/chat/completions',
    body: (question) =>
      `{${SAMPLING},"max_tokens":4,"tools":[${FUNCTION}],"messages":[{"role":"user","content":"${question}"}]}`,
  },
  Messages: {
    path: '/messages',
    body: (question) =>
      `{${SAMPLING},"max_tokens":4,"messages":[{"role":"user","content":"${question}"}],` +
      `"tools":[{"name":"f","input_schema":${SCHEMA}}]}`,
  },
  Responses: {
    path: '/responses',
    body: (question) =>
      `{${SAMPLING},"max_output_tokens":16,"input":[{"role":"user","content":"${question}"}],` +
      `"tools":[{"type":"function","name":"f","parameters":${SCHEMA}}]}`,
  },
}

/** Returns the embedded template's prompt: one question, optionally after a call. */
function getPrompt(tool: string, conversation: string): number[] {
  const text =
    '<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n\nYou may call one or more functions to assist with the ' +
    'user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' +
    `${tool}\n</tools>\n\nFor each function call, return a json object with function name and arguments within ` +
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n' +
    `</tool_call><|im_end|>\n${conversation}<|im_start|>assistant\n`
  return loadTokenizer(getEmbeddedModelFolder()).encode(text)
}

const userTurn = (question: string) => `<|im_start|>user\n${question}<|im_end|>\n`

async function startTokenProxy(t: Test, db?: string): Promise<TestProxy> {
  const engine = await startEngine(t)
  const options = { engineUrls: [engine.url], tokenizer: 'embedded' as const }
  return await startProxy(t, db === undefined ? options : { ...options, db })
}

async function sendRequest(t: Test, proxy: TestProxy, sessionId: string, path: string, body: string) {
  const response = await fetch(proxy.baseUrl(sessionId) + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  })
  const text = await response.text()
  t.equal(response.status, 200, `${path} is served`)
  return text
}

async function getTurns(proxy: TestProxy, sessionId: string) {
  return (await proxy.get(`/sessions/${sessionId}`)).turns
}

const proxy = await startTokenProxy(t)

t.test('a prompt shows the numbers of a tool as the reference does, in each dialect', async (t) => {
  // Long requests are parsed by a different code path than short ones.
  const questions = { short: 'Why?', long: 'Why? '.repeat(1_000).trim() }
  for (const [name, { path, body }] of Object.entries(DIALECTS)) {
    for (const [length, question] of Object.entries(questions)) {
      const sessionId = `${path.replaceAll('/', '-').slice(1)}-${length}`
      await sendRequest(t, proxy, sessionId, path, body(question))
      const [turn] = await getTurns(proxy, sessionId)
      t.same(turn.prompt_token_ids, getPrompt(SHOWN_TOOL, userTurn(question)), `${name}, ${length}`)
    }
  }
})

t.test('the input of a call in Messages is shown as the agent wrote it', async (t) => {
  for (const question of ['Why?', 'Why? '.repeat(1_000).trim()]) {
    const sessionId = `s${question.length}`
    const messages = [
      `{"role":"user","content":"${question}"}`,
      '{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f",' +
        '"input":{"x":1000.0,"y":[9007199254740993,1e-9],"z":null}}]}',
      '{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"3.0"}]}',
    ]
    const body =
      `{${SAMPLING},"max_tokens":4,"tools":[{"name":"f","input_schema":${SCHEMA}}],` +
      `"messages":[ ${messages.join(' , ')} ]}`
    await sendRequest(t, proxy, sessionId, '/messages', body)
    const conversation =
      `${userTurn(question)}<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": ` +
      '{"x": 1000.0, "y": [9007199254740993, 1e-09], "z": null}}\n</tool_call><|im_end|>\n' +
      '<|im_start|>user\n<tool_response>\n3.0\n</tool_response><|im_end|>\n'
    const [turn] = await getTurns(proxy, sessionId)
    t.same(turn.prompt_token_ids, getPrompt(SHOWN_TOOL, conversation), `${question.length} characters`)
  }
})

t.test(
  'arguments that a client sends as an object are shown as it wrote them, and matched as values',
  async (t) => {
    const written = '{"x":1000.0,"y":[9007199254740993,1e-9]}'
    const messages = (args: string) =>
      `{"role":"user","content":"Why?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",` +
      `"function":{"name":"f","arguments":${args}}}]},{"role":"tool","tool_call_id":"c1","content":"3"}`
    for (const tools of ['', `"tools":[${FUNCTION}],`]) {
      const prompts = []
      for (const args of [written, JSON.stringify(written)]) {
        const sessionId = `o${tools.length}-${args.length}`
        const body = `{${SAMPLING},"max_tokens":4,${tools}"messages":[${messages(args)}]}`
        await sendRequest(t, proxy, sessionId, '/chat/completions', body)
        const [turn] = await getTurns(proxy, sessionId)
        prompts.push(turn.prompt_token_ids)
      }
      t.same(prompts[0], prompts[1], 'as the same arguments in text')
    }
  },
)

t.test('numbers are recorded and returned as they were written', async (t) => {
  const { path, body } = DIALECTS.Responses!
  t.match(await sendRequest(t, proxy, 's', path, body('Why?')), '"default":1000.0')
  const record = await (await fetch(`${proxy.url}/sessions/s`)).text()
  t.match(record, '"maximum":9007199254740993')
})

t.test('a restarted proxy continues a turn with the same tools, and not with others', async (t) => {
  const db = `${t.testdir({})}/proxy.db`
  const { path, body } = DIALECTS['Chat Completions']!
  const first = await startTokenProxy(t, db)
  const { message } = JSON.parse(await sendRequest(t, first, 's', path, body('Why?'))).choices[0]
  await first.server.stop(0)
  const second = await startTokenProxy(t, db)
  const more = `"},${JSON.stringify(message)},{"role":"user","content":"Go on.`
  const next = body(`Why?${more}`)
  await sendRequest(t, second, 's', path, next)
  await sendRequest(t, second, 's', path, next.replace('1000.0', '1000'))
  const turns = await getTurns(second, 's')
  t.equal(turns[1].annotations.prompt.reason, 'extended')
  t.equal(turns[2].annotations.prompt.reason, 'branched')
})
