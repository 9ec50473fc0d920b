import t from 'tap'
import type { GenerationDelta, GenerationEnd } from '../../../../../src/protocol/canonical/events.ts'
import type { ChatBody } from '../../../../../src/protocol/canonical/request.ts'
import { createChatDecoder } from '../../../../../src/proxy/session/prompts/completion-decoder.ts'
import type { TokenModel } from '../../../../../src/proxy/tokens/model/token-model.ts'
import { loadTokenModel } from '../conversation-player.ts'

const model = loadTokenModel('qwen3') as TokenModel
const encode = (text: string) => [...model.tokenizer.encode(text)]
const [END] = encode('<|im_end|>')
const [OTHER_END] = encode('<|endoftext|>')

const end = (fields: Partial<GenerationEnd> = {}): GenerationEnd => ({
  type: 'end',
  finishReason: 'stop',
  ...fields,
})
const delta = (ids: readonly number[], fields: Partial<GenerationDelta> = {}): GenerationDelta => ({
  ...{ type: 'delta', tokenIds: [...ids], logprobs: ids.map(() => -1) },
  ...fields,
})

/**
 * Decodes a response of these tokens, one event for each.
 * @returns its texts, tool calls, and the end
 */
async function readResponse(
  ids: readonly number[],
  {
    body = {},
    ends = {},
    promptText = '',
  }: { body?: object; ends?: Partial<GenerationEnd>; promptText?: string } = {},
) {
  const decoder = createChatDecoder(model, body as ChatBody, { promptText, forcesCall: false })
  const events = await decoder.read([...ids.map((id) => delta([id])), end(ends)])
  decoder.close()
  const deltas = events.filter((event) => event.type === 'delta') as GenerationDelta[]
  return {
    text: deltas.map(({ content }) => content ?? '').join(''),
    toolCalls: deltas.flatMap(({ toolCalls }) => toolCalls ?? []),
    tokenIds: deltas.flatMap(({ tokenIds }) => tokenIds ?? []),
    end: events.at(-1) as GenerationEnd,
  }
}

t.test('a token that ends the response has no text, and is one of its tokens', async (t) => {
  const ids = [...encode('Hello'), END!]
  const response = await readResponse(ids)
  t.equal(response.text, 'Hello')
  t.strictSame(response.tokenIds, ids)
  t.match(response.end, { type: 'end', finishReason: 'stop' })
  t.notOk('stopReason' in response.end)
})

t.test('a token that may end the response but did not has its text', async (t) => {
  const [word] = encode('Hello')
  const stops = { body: { stop_token_ids: [word!] } }
  t.equal((await readResponse(encode('Hello there'), stops)).text, 'Hello there', 'others follow it')
  t.equal((await readResponse([word!, word!], stops)).text, 'Hello', 'the last one of two has ended it')
  const cut = { ...stops, ends: { finishReason: 'length' as const } }
  t.equal((await readResponse([word!], cut)).text, 'Hello', 'the limit has ended it')
  const byText = { ...stops, ends: { stopReason: 'x' } }
  t.equal((await readResponse([word!], byText)).text, 'Hello', 'a stop string has ended it')
  const included = { body: { stop_token_ids: [word!], include_stop_str_in_output: true } }
  t.equal((await readResponse([word!], included)).text, 'Hello')
  t.equal(
    (await readResponse([word!], { body: { stop_token_ids: [word!], no_stop_trim: true } })).text,
    'Hello',
  )
  t.equal(
    (await readResponse([word!], { body: { stop_token_ids: ['1', null] } })).text,
    'Hello',
    'no numbers',
  )
})

t.test('special tokens are visible where the request asks for them', async (t) => {
  const ids = [...encode('a'), OTHER_END!, ...encode('b')]
  t.equal((await readResponse(ids)).text, 'ab')
  t.equal((await readResponse(ids, { body: { skip_special_tokens: false } })).text, 'a<|endoftext|>b')
})

t.test('a stop string ends the text, and is the stop reason', async (t) => {
  const ids = encode('one two three')
  const stopped = await readResponse(ids, { body: { stop: ' two' } })
  t.equal(stopped.text, 'one')
  t.equal(stopped.end.stopReason, ' two')
  t.equal((await readResponse(ids, { body: { stop: ['x', ' three'] } })).end.stopReason, ' three')
  const included = { body: { stop: [' two'], include_stop_str_in_output: true } }
  t.equal((await readResponse(ids, included)).text, 'one two')
  t.notOk('stopReason' in (await readResponse(ids, { body: { stop: ['x'] } })).end)
})

t.test("the engine's own reason is recorded, also null", async (t) => {
  const ids = encode('one two')
  t.equal((await readResponse(ids, { body: { stop: ' two' }, ends: { stopReason: 5 } })).end.stopReason, 5)
  t.equal(
    (await readResponse(ids, { body: { stop: ' two' }, ends: { stopReason: null } })).end.stopReason,
    null,
  )
})

t.test('the first tokens of a response with min_tokens never end it', async (t) => {
  const ids = encode('one two two')
  t.equal((await readResponse(ids, { body: { stop: ' two', min_tokens: 0 } })).text, 'one')
  t.equal((await readResponse(ids, { body: { stop: ' two', min_tokens: 1 } })).text, 'one')
  t.equal((await readResponse(ids, { body: { stop: ' two', min_tokens: 2 } })).text, 'one two')
  t.equal((await readResponse(ids, { body: { stop: ' two', min_tokens: '2' } })).text, 'one', 'no number')
})

t.test('deferred text is sent with the end', async (t) => {
  const ids = encode('one')
  t.equal((await readResponse(ids, { body: { stop: 'one two' } })).text, 'one', 'the start of a stop string')
  const sign = encode('𓀀')
  t.ok(sign.length > 1)
  t.equal((await readResponse(sign.slice(0, -1))).text, '�', 'a part of a character')
})

const CALLS =
  '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
const TOOLS = ['f', 'g'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object' } },
}))

t.test('a response with tool calls has that finish reason, if the model ended it', async (t) => {
  const ids = [...encode(CALLS), END!]
  const called = await readResponse(ids, { body: { tools: TOOLS } })
  t.strictSame(
    called.toolCalls.map(({ function: call }) => call?.name).filter((name) => name !== undefined),
    ['f', 'g'],
  )
  t.equal(called.end.finishReason, 'tool_calls')
  const truncated = await readResponse(ids, { body: { tools: TOOLS }, ends: { finishReason: 'length' } })
  t.equal(truncated.end.finishReason, 'length')
  t.equal((await readResponse(encode('Hello'), { body: { tools: TOOLS } })).end.finishReason, 'stop')
  const one = await readResponse(ids, { body: { tools: TOOLS, parallel_tool_calls: false } })
  t.strictSame(
    [...new Set(one.toolCalls.map(({ index }) => index))],
    [0],
    'one tool call, if the agent accepts only one',
  )
  t.equal(one.end.finishReason, 'tool_calls')
  t.strictSame(one.tokenIds, ids, 'of all the tokens')
  const none = await readResponse(ids, { body: { tools: TOOLS, tool_choice: 'none' } })
  t.strictSame(none.toolCalls, [])
  t.equal(none.text, CALLS)
})

t.test('a response without ids is an error of the engine, unless nothing was sampled', async (t) => {
  const read = (events: (GenerationDelta | GenerationEnd)[]) =>
    createChatDecoder(model, {} as ChatBody, { promptText: '', forcesCall: false }).read(events)
  const error = { code: 'engine_failed', message: /reported no token ids/ }
  await t.rejects(read([{ type: 'delta', content: 'Hello' }, end()]), error)
  const usage = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 }
  await t.rejects(read([end({ usage })]), error)
  await t.resolves(read([end({ usage: { ...usage, completion_tokens: 0 } })]))
  await t.resolves(read([{ type: 'delta', content: '' }, end()]))
  await t.resolves(read([delta(encode('a'), { content: 'a' }), end({ usage })]))
})

t.test('tokens that an engine writes as ids are texts to the agent', async (t) => {
  const [id] = encode('Hello')
  const entry = (token: string) => ({ token, logprob: -1, bytes: null })
  const content = [{ ...entry(`token_id:${id}`), top_logprobs: [entry(`token_id:${id}`), entry('written')] }]
  const read = async (body: object) => {
    const decoder = createChatDecoder(model, body as ChatBody, { promptText: '', forcesCall: false })
    const events = await decoder.read([delta([id!], { logprobsContent: content }), end()])
    return (events[0] as GenerationDelta).logprobsContent![0]!
  }
  const shown = await read({})
  t.equal(shown.token, 'Hello')
  t.strictSame(shown.bytes, [...Buffer.from('Hello')])
  t.strictSame(
    shown.top_logprobs.map(({ token }) => token),
    ['Hello', 'written'],
  )
  t.equal((await read({ return_tokens_as_token_ids: true })).token, `token_id:${id}`)
})

t.test('a response in several batches equals the response in one batch', async (t) => {
  const decoder = createChatDecoder(model, {} as ChatBody, { promptText: '', forcesCall: false })
  t.teardown(() => decoder.close())
  const contents: (string | undefined)[] = []
  for (const id of encode('Hello there')) {
    const events = await decoder.read([{ type: 'start' } as never, delta([id])])
    t.equal(events[0]?.type, 'start', 'other events pass unchanged')
    contents.push(...events.flatMap((event) => (event.type === 'delta' ? [event.content] : [])))
  }
  t.equal(contents.join(''), 'Hello there', 'before the end')
  t.match(await decoder.read([{ type: 'delta', content: '' }]), [{ type: 'delta' }], 'a delta without tokens')
  const events = await decoder.read([end()])
  t.equal(events.at(-1)?.type, 'end')
})

t.test('the usage counts the tokens of the reasoning, without the markers', async (t) => {
  const read = async (ids: readonly number[], usage?: GenerationEnd['usage']) => {
    const decoder = createChatDecoder(model, {} as ChatBody, { promptText: '', forcesCall: false })
    const events = await decoder.read([...ids.map((id) => delta([id])), end({ usage })])
    decoder.close()
    return (events.at(-1) as GenerationEnd).usage
  }
  const thought = encode('one two three')
  const ids = [...encode('<think>'), ...thought, ...encode('</think>'), ...encode('Hello')]
  const usage = { prompt_tokens: 3, completion_tokens: ids.length, total_tokens: 3 + ids.length }
  const counted = { ...usage, completion_tokens_details: { reasoning_tokens: thought.length } }
  t.strictSame(await read(ids, usage), counted)
  t.strictSame(await read(encode('Hello'), usage), usage, 'there is no reasoning')
  t.equal(await read(ids), undefined, 'the engine has sent no usage')
})
