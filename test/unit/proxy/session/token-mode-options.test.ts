/** The request fields that determine a prompt in token mode, and the engine's other parameters. */

import t, { type Test } from 'tap'
import type { ChatMessage, Tool } from '../../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../../src/protocol/canonical/request.ts'
import { TokenPrompts } from '../../../../src/proxy/session/prompts/token-prompts.ts'
import type { TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { harmony } from '../../../../src/proxy/tokens/parsers/harmony.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { createTokenModeRig, type FakeCompletion } from '../../../helpers/token-mode-rig.ts'
import { loadTokenModel } from './conversation-player.ts'

/** Starts an engine that responds with `I see.` to every request, behind token mode. */
async function setUp(t: Test, model: TokenModel, store?: TurnStore, overrides?: Partial<FakeCompletion>) {
  const requests: GenerationRequest[] = []
  const respond = (request: GenerationRequest) => {
    requests.push(request)
    return { text: 'I see.', ...overrides }
  }
  return { requests, ...(await createTokenModeRig(t, model, respond, store)) }
}

const hello: ChatMessage = { role: 'user', content: 'Hello.' }
const seen: ChatMessage = { role: 'assistant', content: 'I see.' }
const qwen3 = loadTokenModel('qwen3')

t.test("a session's chat_template_kwargs reach the template, whatever the agent sends", async (t) => {
  const model = qwen3
  const { sessions, sendRequest } = await setUp(t, model)
  await sessions.create({
    sessionId: 's',
    samplingParams: { chat_template_kwargs: { enable_thinking: false } },
  })
  const { promptTokenIds } = await sendRequest([{ role: 'user', content: 'Hello.' }])
  t.match(model.tokenizer.decode(promptTokenIds), /<think>\n\n<\/think>\n\n$/)
})

t.test(
  'the choices of one request share a prompt that is rendered once, and each is continued by itself',
  async (t) => {
    const model = qwen3
    let renders = 0
    const { renderer } = model
    const countingRenderer = new Proxy(renderer, {
      get(target, name) {
        const value = Reflect.get(target, name)
        if (typeof value !== 'function') return value
        return (...input: unknown[]) => {
          if (name === 'renderFull') renders += 1
          return value.apply(target, input)
        }
      },
    })
    const { sendRequest, sendRequestFor } = await setUp(
      t,
      new Proxy(model, {
        get: (target, name) => (name === 'renderer' ? countingRenderer : Reflect.get(target, name)),
      }),
    )
    const first: ChatMessage[] = [{ role: 'user', content: 'Vote!' }]
    const turns = await sendRequestFor(4, first)
    t.equal(renders, 1)
    const prompts = turns.map(({ promptTokenIds }) => [...promptTokenIds])
    t.equal(new Set(prompts.map(String)).size, 1)
    t.ok(turns.every(({ exact }) => exact))
    const assistantMessage = { role: 'assistant', content: turns[2]!.completionText } as ChatMessage
    const next = await sendRequest([...first, assistantMessage, { role: 'user', content: 'Why?' }])
    const full = [...turns[2]!.promptTokenIds, ...turns[2]!.completionTokenIds]
    t.same([...next.promptTokenIds.subarray(0, full.length)], full)
    await sendRequestFor(2, [{ role: 'user', content: 'Another vote!' }])
    t.equal(renders, 2, 'those of another request again')
  },
)

t.test("an effort has the template's name, unless its own variable sets another", async (t) => {
  const { sendRequest } = await setUp(t, qwen3)
  const isOff = async (fields: object) => {
    const { promptTokenIds } = await sendRequest([hello], fields)
    return qwen3.tokenizer.decode(promptTokenIds).endsWith('<think>\n\n</think>\n\n')
  }
  t.notOk(await isOff({}))
  t.notOk(await isOff({ reasoning_effort: 'high' }))
  t.notOk(await isOff({ reasoning_effort: null, chat_template_kwargs: null }))
  t.ok(await isOff({ reasoning_effort: 'none' }))
  t.ok(await isOff({ reasoning_effort: 'high', chat_template_kwargs: { enable_thinking: false } }))
})

t.test('after a restart a request continues only turns with the same template variables', async (t) => {
  // Its template begins with the date.
  const llama = loadTokenModel('llama3_2')
  const dated = (date_string: string) => ({ chat_template_kwargs: { date_string } })
  const { sendRequest, store } = await setUp(t, llama)
  const first = await sendRequest([hello], dated('1 May'))
  const restarted = async (fields: object) => {
    const { annotations } = await (await setUp(t, llama, store)).sendRequest([hello, seen, hello], fields)
    return JSON.parse(annotations).prompt
  }
  t.match(await restarted(dated('1 May')), { from: first.turnId })
  t.notOk((await restarted(dated('2 May'))).from)
})

t.test("a response is limited by the remaining context, and by the agent's limit", async (t) => {
  const { sendRequest, requests } = await setUp(t, qwen3)
  const { promptTokenIds } = await sendRequest([hello])
  const used = promptTokenIds.length
  t.notOk('max_tokens' in requests[0]!.body, 'the context length is unknown')
  await sendRequest([hello], { max_completion_tokens: 7, max_tokens: 9 })
  t.match(requests[1]!.body, { max_tokens: 7 })
  const small = await setUp(t, { ...qwen3, contextLength: used + 5 } as TokenModel)
  for (const max_tokens of [undefined, 4, 6]) await small.sendRequest([hello], max_tokens && { max_tokens })
  t.strictSame(
    small.requests.map(({ body }) => body.max_tokens),
    [5, 4, 5],
  )
  const limited = await setUp(t, { ...qwen3, contextLength: used + 50 } as TokenModel)
  await limited.sessions.create({ sessionId: 's', limits: { sampled_tokens: 4 } })
  await limited.sendRequest([hello])
  t.equal(limited.requests[0]!.body.max_tokens, 4, 'the remaining budget of its session')
  const full = await setUp(t, { ...qwen3, contextLength: used } as TokenModel)
  const turn = await full.sendRequest([hello])
  t.equal(full.requests.length, 0, 'no engine receives a request')
  t.match(turn, { status: 'completed', completionText: '', finishReason: 'length', engine: 'none' })
  t.equal(turn.promptTokenIds.length, used)
  t.strictSame(JSON.parse(turn.usage!), { prompt_tokens: used, completion_tokens: 0, total_tokens: used })
})

const tools: Tool[] = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }]

t.test('a forced tool call becomes a schema, and is rejected if the format cannot contain one', async (t) => {
  const { sendRequest, requests } = await setUp(t, qwen3)
  await sendRequest([hello], { tools, tool_choice: 'required' })
  const { promptTokenIds } = await sendRequest([hello], { tools })
  t.match(qwen3.tokenizer.decode(promptTokenIds), /"look"/)
  const hasSchema = requests.map(({ body }) => 'response_format' in body)
  t.strictSame(hasSchema, [true, false])
  const free = await setUp(t, { ...qwen3, parser: harmony } as TokenModel)
  const rejected = { code: 'unsupported', param: 'tool_choice' }
  await t.rejects(free.sendRequest([hello], { tools, tool_choice: 'required' }), rejected)
  t.match(await free.sendRequest([hello], { tools }), { status: 'completed' })
})

t.test('a request without images has no positions for any', async (t) => {
  const imageRule = { tokenId: 1 } as TokenModel['imageRule']
  const { sendRequest, requests } = await setUp(t, { ...qwen3, imageRule } as TokenModel)
  await sendRequest([hello])
  t.notOk('images' in requests[0]!)
})

t.test('experts recorded with an earlier turn are not requested again', async (t) => {
  const experts = { start: 0, experts: { shape: [1, 1, 1], data: Int32Array.of(0) } }
  const details = { routed_experts: experts } as unknown as FakeCompletion['details']
  const getStarts = async (record: string[], overrides: Partial<FakeCompletion>) => {
    const { sessions, sendRequest, requests } = await setUp(t, qwen3, undefined, overrides)
    await sessions.create({ sessionId: 's', record })
    const first = await sendRequest([hello])
    await sendRequest([hello, seen, hello])
    const full = first.promptTokenIds.length + first.completionTokenIds.length
    return requests.map(({ expertsStart: start }) => start && start - full)
  }
  t.strictSame(
    await getStarts(['routed_experts'], { details }),
    [undefined, -1],
    "no turn had the last token's",
  )
  t.strictSame(await getStarts(['routed_experts'], {}), [undefined, undefined], 'the engine reported none')
  t.strictSame(await getStarts([], { details }), [undefined, undefined])
})

t.test('requests that token mode cannot serve are rejected with the field', async (t) => {
  const { sendRequest } = await setUp(t, qwen3)
  const assertRejected = (param: string, value: unknown) =>
    t.rejects(sendRequest([hello], { [param]: value }), { code: 'unsupported', param })
  await assertRejected('chat_template', '{{ messages }}')
  await assertRejected('echo', true)
  for (const param of ['truncate_prompt_tokens', 'functions', 'function_call'])
    await assertRejected(param, [])
  t.match(await sendRequest([hello], { echo: false, functions: null }), { status: 'completed' })
})

t.test('a token count is rejected for the same reasons as a request', async (t) => {
  const prompts = new TokenPrompts(qwen3, await openMemoryStore())
  const { signal } = new AbortController()
  const messages = [{ role: 'user' as const, content: 'x' }]
  t.ok((await prompts.countTokens({ messages }, signal)) > 1)
  const rejected = { chat_template: 'x', truncate_prompt_tokens: 5, stop: new Array(65).fill('x') }
  for (const [param, value] of Object.entries(rejected))
    await t.rejects(
      prompts.countTokens({ messages, [param]: value }, signal),
      { message: `'${param}'` },
      param,
    )
})

t.test('the next prompt of a session is counted by its recorded tokens', async (t) => {
  const { sendRequest, count } = await createTokenModeRig(t, qwen3, () => ({
    text: '<think>\nA long thought.\n</think>\n\nHi.',
  }))
  await sendRequest([hello])
  const next: ChatMessage[] = [hello, { role: 'assistant', content: 'Hi.' }, hello]
  const counted = await count(next)
  t.equal((await sendRequest(next)).promptTokenIds.length, counted)
  const { signal } = new AbortController()
  const fresh = await new TokenPrompts(qwen3, await openMemoryStore()).countTokens({ messages: next }, signal)
  t.ok(fresh < counted, 'the template drops the reasoning, which the engine received')
})

t.test('files and audio are rejected with the mode that forwards them', async (t) => {
  const { sendRequest } = await setUp(t, qwen3)
  const file = { type: 'file', file: { file_data: 'data:application/pdf;base64,JVBERi0=' } }
  const sound = { type: 'input_audio', input_audio: { data: 'AA', format: 'wav' } }
  for (const part of [file, sound]) {
    const content = [{ type: 'text', text: 'Hi' }, part]
    const error = { code: 'unsupported', param: 'messages.0.content.1', message: /use chat mode/ }
    await t.rejects(sendRequest([{ role: 'user', content } as ChatMessage]), error)
  }
})
