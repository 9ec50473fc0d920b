/** The request fields that determine a prompt in token mode, and the engine's other parameters. */

import t, { type Test } from 'tap'
import type { ChatMessage, Tool } from '../../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../../src/protocol/canonical/request.ts'
import { TokenPrompts } from '../../../../src/proxy/session/prompts/token-prompts.ts'
import type { TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { harmony } from '../../../../src/proxy/tokens/parsers/harmony.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'
import { type Answer, tokenModeRig } from '../../../helpers/token-mode-rig.ts'
import { loadTokenModel } from './token-mode-talk.ts'

/** An engine that responds with `I see.` to every request, behind token mode. */
async function setUp(t: Test, model: TokenModel, store?: TurnStore, more?: Partial<Answer>) {
  const requests: GenerationRequest[] = []
  const answer = (request: GenerationRequest) => {
    requests.push(request)
    return { text: 'I see.', ...more }
  }
  return { requests, ...(await tokenModeRig(t, model, answer, store)) }
}

const hello: ChatMessage = { role: 'user', content: 'Hello.' }
const seen: ChatMessage = { role: 'assistant', content: 'I see.' }
const qwen3 = loadTokenModel('qwen3')

t.test("a session's chat_template_kwargs reach the template, whatever the agent sends", async (t) => {
  const model = qwen3
  const { sessions, ask } = await setUp(t, model)
  await sessions.create({
    sessionId: 's',
    samplingParams: { chat_template_kwargs: { enable_thinking: false } },
  })
  const { promptTokenIds } = await ask([{ role: 'user', content: 'Hello.' }])
  t.match(model.tokenizer.decode(promptTokenIds), /<think>\n\n<\/think>\n\n$/)
})

t.test(
  'the choices of one request share a prompt that is rendered once, and each is continued by itself',
  async (t) => {
    const model = qwen3
    let renders = 0
    const { renderer } = model
    const counting = new Proxy(renderer, {
      get(target, name) {
        const value = Reflect.get(target, name)
        if (typeof value !== 'function') return value
        return (...given: unknown[]) => {
          if (name === 'renderFull') renders += 1
          return value.apply(target, given)
        }
      },
    })
    const { ask, askFor } = await setUp(
      t,
      new Proxy(model, {
        get: (target, name) => (name === 'renderer' ? counting : Reflect.get(target, name)),
      }),
    )
    const first: ChatMessage[] = [{ role: 'user', content: 'Vote!' }]
    const turns = await askFor(4, first)
    t.equal(renders, 1)
    const prompts = turns.map(({ promptTokenIds }) => [...promptTokenIds])
    t.equal(new Set(prompts.map(String)).size, 1)
    t.ok(turns.every(({ exact }) => exact))
    const answer = { role: 'assistant', content: turns[2]!.completionText } as ChatMessage
    const next = await ask([...first, answer, { role: 'user', content: 'Why?' }])
    const whole = [...turns[2]!.promptTokenIds, ...turns[2]!.completionTokenIds]
    t.same([...next.promptTokenIds.subarray(0, whole.length)], whole)
    await askFor(2, [{ role: 'user', content: 'Another vote!' }])
    t.equal(renders, 2, 'those of another request again')
  },
)

t.test("an effort has the template's name, unless its own variable sets another", async (t) => {
  const { ask } = await setUp(t, qwen3)
  const isOff = async (fields: object) => {
    const { promptTokenIds } = await ask([hello], fields)
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
  const { ask, store } = await setUp(t, llama)
  const first = await ask([hello], dated('1 May'))
  const restarted = async (fields: object) => {
    const { annotations } = await (await setUp(t, llama, store)).ask([hello, seen, hello], fields)
    return JSON.parse(annotations).prompt
  }
  t.match(await restarted(dated('1 May')), { from: first.turnId })
  t.notOk((await restarted(dated('2 May'))).from)
})

t.test("a response is limited by the remaining context, and by the agent's limit", async (t) => {
  const { ask, requests } = await setUp(t, qwen3)
  const { promptTokenIds } = await ask([hello])
  const used = promptTokenIds.length
  t.notOk('max_tokens' in requests[0]!.body, 'the context length is unknown')
  await ask([hello], { max_completion_tokens: 7, max_tokens: 9 })
  t.match(requests[1]!.body, { max_tokens: 7 })
  const small = await setUp(t, { ...qwen3, contextLength: used + 5 } as TokenModel)
  for (const max_tokens of [undefined, 4, 6]) await small.ask([hello], max_tokens && { max_tokens })
  t.strictSame(
    small.requests.map(({ body }) => body.max_tokens),
    [5, 4, 5],
  )
  const limited = await setUp(t, { ...qwen3, contextLength: used + 50 } as TokenModel)
  await limited.sessions.create({ sessionId: 's', limits: { sampled_tokens: 4 } })
  await limited.ask([hello])
  t.equal(limited.requests[0]!.body.max_tokens, 4, 'the remaining budget of its session')
  const full = await setUp(t, { ...qwen3, contextLength: used } as TokenModel)
  const turn = await full.ask([hello])
  t.equal(full.requests.length, 0, 'no engine receives a request')
  t.match(turn, { status: 'completed', completionText: '', finishReason: 'length', engine: 'none' })
  t.equal(turn.promptTokenIds.length, used)
  t.strictSame(JSON.parse(turn.usage!), { prompt_tokens: used, completion_tokens: 0, total_tokens: used })
})

const tools: Tool[] = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }]

t.test('a forced tool call becomes a schema, and is rejected if the format cannot contain one', async (t) => {
  const { ask, requests } = await setUp(t, qwen3)
  await ask([hello], { tools, tool_choice: 'required' })
  const { promptTokenIds } = await ask([hello], { tools })
  t.match(qwen3.tokenizer.decode(promptTokenIds), /"look"/)
  const isHeld = requests.map(({ body }) => 'response_format' in body)
  t.strictSame(isHeld, [true, false])
  const free = await setUp(t, { ...qwen3, parser: harmony } as TokenModel)
  const refused = { code: 'unsupported', param: 'tool_choice' }
  await t.rejects(free.ask([hello], { tools, tool_choice: 'required' }), refused)
  t.match(await free.ask([hello], { tools }), { status: 'completed' })
})

t.test('a request without images has no positions for any', async (t) => {
  const imageRule = { tokenId: 1 } as TokenModel['imageRule']
  const { ask, requests } = await setUp(t, { ...qwen3, imageRule } as TokenModel)
  await ask([hello])
  t.notOk('images' in requests[0]!)
})

t.test('experts recorded with an earlier turn are not requested again', async (t) => {
  const experts = { start: 0, experts: { shape: [1, 1, 1], data: Int32Array.of(0) } }
  const details = { routed_experts: experts } as unknown as Answer['details']
  const startsOf = async (record: string[], more: Partial<Answer>) => {
    const { sessions, ask, requests } = await setUp(t, qwen3, undefined, more)
    await sessions.create({ sessionId: 's', record })
    const first = await ask([hello])
    await ask([hello, seen, hello])
    const whole = first.promptTokenIds.length + first.completionTokenIds.length
    return requests.map(({ expertsStart: start }) => start && start - whole)
  }
  t.strictSame(
    await startsOf(['routed_experts'], { details }),
    [undefined, -1],
    "no turn had the last token's",
  )
  t.strictSame(await startsOf(['routed_experts'], {}), [undefined, undefined], 'the engine reported none')
  t.strictSame(await startsOf([], { details }), [undefined, undefined])
})

t.test('requests that token mode cannot serve are rejected with the field', async (t) => {
  const { ask } = await setUp(t, qwen3)
  const refuses = (param: string, value: unknown) =>
    t.rejects(ask([hello], { [param]: value }), { code: 'unsupported', param })
  await refuses('chat_template', '{{ messages }}')
  await refuses('echo', true)
  for (const param of ['truncate_prompt_tokens', 'functions', 'function_call']) await refuses(param, [])
  t.match(await ask([hello], { echo: false, functions: null }), { status: 'completed' })
})

t.test('a token count is rejected for the same reasons as a request', async (t) => {
  const prompts = new TokenPrompts(qwen3, await openMemoryStore())
  const { signal } = new AbortController()
  const messages = [{ role: 'user' as const, content: 'x' }]
  t.ok((await prompts.countTokens({ messages }, signal)) > 1)
  const refused = { chat_template: 'x', truncate_prompt_tokens: 5, stop: new Array(65).fill('x') }
  for (const [param, value] of Object.entries(refused))
    await t.rejects(
      prompts.countTokens({ messages, [param]: value }, signal),
      { message: `'${param}'` },
      param,
    )
})

t.test('the next prompt of a session is counted by its recorded tokens', async (t) => {
  const { ask, count } = await tokenModeRig(t, qwen3, () => ({
    text: '<think>\nA long thought.\n</think>\n\nHi.',
  }))
  await ask([hello])
  const next: ChatMessage[] = [hello, { role: 'assistant', content: 'Hi.' }, hello]
  const counted = await count(next)
  t.equal((await ask(next)).promptTokenIds.length, counted)
  const { signal } = new AbortController()
  const anew = await new TokenPrompts(qwen3, await openMemoryStore()).countTokens({ messages: next }, signal)
  t.ok(anew < counted, 'the template drops the reasoning, which the engine received')
})

t.test('files and audio are rejected with the mode that forwards them', async (t) => {
  const { ask } = await setUp(t, qwen3)
  const file = { type: 'file', file: { file_data: 'data:application/pdf;base64,JVBERi0=' } }
  const sound = { type: 'input_audio', input_audio: { data: 'AA', format: 'wav' } }
  for (const part of [file, sound]) {
    const content = [{ type: 'text', text: 'Hi' }, part]
    const error = { code: 'unsupported', param: 'messages.0.content.1', message: /use chat mode/ }
    await t.rejects(ask([{ role: 'user', content } as ChatMessage]), error)
  }
})
