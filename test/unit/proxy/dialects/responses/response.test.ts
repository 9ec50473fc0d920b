import assert from 'node:assert/strict'
import fc from 'fast-check'
import { ResponseStream } from 'openai/lib/responses/ResponseStream'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { seal } from '../../../../../src/proxy/dialects/common/sealed-reasoning.ts'
import { lowerItems } from '../../../../../src/proxy/dialects/responses/items.ts'
import { lowerResponsesRequest } from '../../../../../src/proxy/dialects/responses/request.ts'
import { createResponse, type ResponseFrame } from '../../../../../src/proxy/dialects/responses/response.ts'
import { checkResponsesRequest, type InputItem } from '../../../../../src/proxy/dialects/responses/schema.ts'
import { ResponsesStreamWriter } from '../../../../../src/proxy/dialects/responses/stream.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

// biome-ignore lint/suspicious/noExplicitAny: tests read responses of any shape
type Json = any

const usage = {
  prompt_tokens: 9,
  completion_tokens: 4,
  total_tokens: 13,
  prompt_tokens_details: { cached_tokens: 3 },
  completion_tokens_details: { reasoning_tokens: 2 },
}
const start: GenerationEvent = { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(7, 8) }
const stop: GenerationEvent = { type: 'end', finishReason: 'stop', usage }

const TOOLS = [
  { type: 'function', name: 'f' },
  { type: 'custom', name: 'patch' },
  { type: 'local_shell' },
  { type: 'namespace', name: 'ns', tools: [{ type: 'function', name: 'g' }] },
]

function createFrame(fields: object = {}): ResponseFrame {
  const request = checkResponsesRequest({ model: 'requested', input: 'hi', tools: TOOLS, ...fields })
  const items = [{ role: 'user', content: 'hi' }] as InputItem[]
  const { lowered, annotation, wireTools } = lowerResponsesRequest(request, [], items)
  const { responseOptions, body: params } = lowered
  return {
    identity: { turnId: 'T', createdS: 5, endedS: 7, model: 'requested' },
    responseOptions,
    annotation,
    wireTools,
    params,
    instructions: request.instructions ?? null,
    tools: request.tools ?? [],
    toolChoice: request.tool_choice ?? 'auto',
  }
}

function foldEvents(events: readonly GenerationEvent[]): CompletionBuilder {
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  return builder
}

const createCompleteResponse = (events: readonly GenerationEvent[], frame = createFrame()): Json =>
  JSON.parse(JSON.stringify(createResponse(frame, foldEvents(events))))

/**
 * Returns the events of a stream, after checking each frame: its name, which appears twice, and its sequence
 * number.
 */
function readEvents(text: string): Json[] {
  const frames = text.split('\n\n')
  assert.equal(frames.pop(), '')
  return frames.map((frame, number) => {
    const [, name, data] = /^event: (.+)\ndata: (.+)$/.exec(frame) ?? []
    const event = JSON.parse(data ?? '')
    assert.equal(event.type, name)
    assert.equal(event.sequence_number, number)
    return event
  })
}

const stream = (events: readonly GenerationEvent[], frame = createFrame()): Json[] =>
  readEvents(new ResponsesStreamWriter(frame).write(events))

/** Returns the response that the official client reads from the events. */
async function readBySdk(events: readonly Json[]): Promise<Json> {
  const lines = events.map((event) => `${JSON.stringify(event)}\n`).join('')
  const bytes = new Blob([lines]).stream()
  const final = await ResponseStream.fromReadableStream(bytes as unknown as ReadableStream).finalResponse()
  // Fields that the client computes are not part of the response.
  const isOwn = (name: string) => name === 'parsed' || name === 'parsed_arguments'
  return JSON.parse(JSON.stringify(final, (name, value) => (isOwn(name) ? undefined : value)))
}

t.test('a tool search call is an item with an object as arguments', async (t) => {
  const frame = createFrame({ tools: [{ type: 'tool_search', execution: 'client' }] })
  const toolCalls = [{ index: 0, id: 'c', function: { name: 'tool_search', arguments: '{"query":"git"}' } }]
  const { output } = createCompleteResponse([start, { type: 'delta', toolCalls }, stop], frame)
  const item = { type: 'tool_search_call', call_id: 'c', execution: 'client', status: 'completed' }
  t.match(output, [{ ...item, arguments: { query: 'git' } }])
  const [, message] = lowerItems([{ type: 'message', role: 'user', content: 'x' }, ...output]).messages
  t.match(message, {
    tool_calls: [{ id: 'c', function: { name: 'tool_search', arguments: '{"query":"git"}' } }],
  })
})

t.test('a keep-alive is a numbered event after `response.created`, which is sent once', async (t) => {
  const writer = new ResponsesStreamWriter(createFrame())
  const text = writer.keepAlive() + writer.write([start]) + writer.keepAlive()
  const first = { type: 'response.created', sequence_number: 0 }
  t.match(readEvents(text), [
    first,
    { type: 'response.in_progress' },
    { type: 'keepalive' },
    { type: 'keepalive' },
  ])
  t.same(
    readEvents(text).map(({ sequence_number: at }) => at),
    [0, 1, 2, 3],
  )
})

t.test('counted reasoning tokens are reported; without a count, the required field is 0', async (t) => {
  const getDetails = (reported?: object) => {
    const counted = { ...usage, completion_tokens_details: reported } as typeof usage
    const response = createCompleteResponse([
      start,
      { type: 'delta', reasoning: 'hm' },
      { ...stop, usage: counted },
    ])
    return response.usage.output_tokens_details
  }
  t.same(getDetails({ reasoning_tokens: 2 }), { reasoning_tokens: 2 })
  t.same(getDetails(), { reasoning_tokens: 0 })
})

t.test('a complete response has the shape of the API', async (t) => {
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'hm', content: 'hi', tokenIds: [1] },
    {
      type: 'delta',
      toolCalls: [{ index: 0, id: 'c1', function: { name: 'f', arguments: '{}' } }],
      tokenIds: [2],
    },
    { ...stop, finishReason: 'tool_calls' },
  ]
  const frame = createFrame({
    instructions: 'be brief',
    metadata: { a: 'b' },
    temperature: 0.5,
    store: false,
  })
  const response = createCompleteResponse(events, frame)
  t.match(response, {
    id: 'resp_T',
    object: 'response',
    created_at: 5,
    status: 'completed',
    completed_at: 7,
    error: null,
    incomplete_details: null,
    instructions: 'be brief',
    metadata: { a: 'b' },
    model: 'm',
    temperature: 0.5,
    store: false,
    tool_choice: 'auto',
    tools: TOOLS,
    usage: {
      input_tokens: 9,
      input_tokens_details: { cached_tokens: 3 },
      output_tokens: 4,
      output_tokens_details: { reasoning_tokens: 2 },
      total_tokens: 13,
    },
  })
  t.same(response.output, [
    {
      type: 'reasoning',
      id: 'rs_T_0',
      summary: [],
      content: [{ type: 'reasoning_text', text: 'hm' }],
      status: 'completed',
    },
    {
      type: 'message',
      id: 'msg_T_0',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: 'hi', annotations: [], logprobs: [] }],
    },
    { type: 'function_call', id: 'fc_T_0', call_id: 'c1', name: 'f', arguments: '{}', status: 'completed' },
  ])
  t.notOk('token_ids' in response, 'no trace of the recording')
})

t.test('a streamed text has the events of the API in their order', async (t) => {
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', content: 'hi', tokenIds: [1] },
    { type: 'delta', tokenIds: [2] },
    { type: 'delta', content: ' there' },
    stop,
  ]
  const sent = stream(events)
  t.same(
    sent.map((event) => event.type),
    [
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ],
  )
  t.match(sent[0].response, {
    id: 'resp_T',
    status: 'in_progress',
    output: { length: 0 },
    completed_at: null,
  })
  t.match(sent[2].item, { type: 'message', status: 'in_progress', content: { length: 0 } })
  const location = { item_id: 'msg_T_0', output_index: 0, content_index: 0 }
  t.match(sent[5], { ...location, delta: ' there', logprobs: { length: 0 } })
  t.match(sent[6], { ...location, text: 'hi there' })
  t.match(sent[9].response, { status: 'completed', output: [sent[8].item], usage: { total_tokens: 13 } })
})

t.test('every kind of tool call is streamed as the agent declared its tool', async (t) => {
  const call = (index: number, name: string, written: string): GenerationDelta => ({
    type: 'delta',
    toolCalls: [{ index, id: `c${index}`, function: { name, arguments: written } }],
  })
  const more = (index: number, written: string): GenerationDelta => ({
    type: 'delta',
    toolCalls: [{ index, function: { arguments: written } }],
  })
  const sent = stream([
    start,
    call(0, 'f', ''),
    more(0, '{"a"'),
    more(0, ':1}'),
    call(1, 'patch', '{"input"'),
    more(1, ':"x\\'),
    more(1, 'ny"}'),
    call(2, 'local_shell', '{"command": ["ls"], "timeout_ms": 3}'),
    call(3, 'ns__g', '{}'),
    call(4, 'patch', '{"other": 1}'),
    call(5, 'local_shell', '{"cmd": "ls"}'),
    stop,
  ])
  const deltas = (type: string) => sent.filter((event) => event.type === type).map((event) => event.delta)
  t.same(deltas('response.function_call_arguments.delta'), ['{"a"', ':1}', '{}', '{"cmd": "ls"}'])
  t.same(deltas('response.custom_tool_call_input.delta'), ['x', '\ny', '{"other": 1}'])
  const status = 'completed'
  const action = { type: 'exec', env: {}, command: ['ls'], timeout_ms: 3 }
  const custom = { type: 'custom_tool_call', name: 'patch', status }
  t.same(sent.at(-1)?.response.output, [
    { type: 'function_call', id: 'fc_T_0', call_id: 'c0', name: 'f', arguments: '{"a":1}', status },
    { ...custom, id: 'ctc_T_1', call_id: 'c1', input: 'x\ny' },
    { type: 'local_shell_call', id: 'lsh_T_2', call_id: 'c2', action, status },
    // The name that the agent declared, with the fields that it requires.
    {
      type: 'function_call',
      id: 'fc_T_3',
      call_id: 'c3',
      name: 'g',
      arguments: '{}',
      namespace: 'ns',
      status,
    },
    { ...custom, id: 'ctc_T_4', call_id: 'c4:raw', input: '{"other": 1}' },
    {
      type: 'function_call',
      id: 'fc_T_5',
      call_id: 'c5',
      name: 'local_shell',
      arguments: '{"cmd": "ls"}',
      status,
    },
  ])
})

t.test('items with texts between tool calls end in order, and their echo is one message', async (t) => {
  const call = (index: number, name: string, written: string): GenerationDelta => ({
    type: 'delta',
    toolCalls: [{ index, id: `c${index}`, function: { name, arguments: written } }],
  })
  const sent = stream([
    start,
    { type: 'delta', content: 'One.\n' },
    call(0, 'f', '{"a":1}'),
    { type: 'delta', content: '\n' },
    ...['', '\n'].map((written) => ({
      type: 'delta' as const,
      toolCalls: [{ index: 0, function: { name: 'f', arguments: written } }],
    })),
    call(1, 'local_shell', '{"command":["ls"]}'),
    { type: 'delta', reasoning: 'hm' },
    call(2, 'patch', '{"input":"x"}'),
    { type: 'delta', content: 'Two.' },
    stop,
  ])
  const items = sent.flatMap(({ type, item }) => (type === 'response.output_item.done' ? [item] : []))
  t.same(
    items.map(({ id }) => id),
    ['msg_T_0', 'fc_T_0', 'msg_T_1', 'lsh_T_1', 'rs_T_0', 'ctc_T_2', 'msg_T_2'],
  )
  t.same(sent.at(-1)?.response.output, items)
  const echoes = items.map(({ id: _, ...item }) => item)
  const { messages } = lowerItems(echoes)
  t.equal(messages.length, 1)
  t.match(messages[0], { content: 'One.\n\nTwo.', reasoning_content: 'hm', tool_calls: { length: 3 } })
})

t.test('text amid the arguments of a tool call does not end the call', async (t) => {
  const toolCalls = (written: string) => [{ index: 0, id: 'c', function: { name: 'f', arguments: written } }]
  const sent = stream([
    start,
    { type: 'delta', toolCalls: toolCalls('{"a":') },
    { type: 'delta', content: ' ' },
    { type: 'delta', toolCalls: [{ index: 0, function: { arguments: '1}' } }] },
    stop,
  ])
  t.match(sent.at(-1)?.response.output, [
    { type: 'function_call', arguments: '{"a":1}' },
    { type: 'message' },
  ])
})

t.test('a text that is truncated after a tool call is the incomplete item', async (t) => {
  for (const written of ['{}', '{']) {
    const sent = stream([
      start,
      { type: 'delta', toolCalls: [{ index: 0, id: 'c', function: { name: 'f', arguments: written } }] },
      { type: 'delta', content: 'Tw' },
      { type: 'end', finishReason: 'length' },
    ])
    t.match(sent.at(-1)?.response.output, [
      { type: 'function_call', status: 'completed' },
      { type: 'message', status: 'incomplete' },
    ])
  }
})

t.test('logprobs are those of the text, streamed or not', async (t) => {
  const entry = (token: string) => ({ token, logprob: -0.5, bytes: null, top_logprobs: [] })
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'hm', logprobsContent: [entry('<think>'), entry('hm')] },
    { type: 'delta', content: 'hi', logprobsContent: [entry('</think>hi')] },
    stop,
  ]
  const frame = () => createFrame({ include: ['message.output_text.logprobs'] })
  for (const { output } of [
    createCompleteResponse(events, frame()),
    stream(events, frame()).at(-1)!.response,
  ])
    t.same(output[1].content[0].logprobs, [entry('</think>hi')])
})

t.test('a shell call with excessive nesting reaches the agent as the model wrote it', async (t) => {
  const written = `{"command":["ls"],"env":${'['.repeat(50_000)}${']'.repeat(50_000)}}`
  const call = { index: 0, id: 'c', function: { name: 'local_shell', arguments: written } }
  const { output } = createCompleteResponse([start, { type: 'delta', toolCalls: [call] }, stop])
  t.match(output, [{ type: 'function_call', name: 'local_shell', arguments: written }])
})

t.test('a truncated response is incomplete, and so is its last item', async (t) => {
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'hm', content: 'hi' },
    { type: 'end', finishReason: 'length' },
  ]
  for (const response of [createCompleteResponse(events), stream(events).at(-1)?.response]) {
    t.match(response, {
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      completed_at: null,
      usage: null,
      output: [{ status: 'completed' }, { status: 'incomplete' }],
    })
  }
  t.equal(stream(events).at(-1)?.type, 'response.incomplete')
  for (const finishReason of ['repetition', 'insufficient_system_resource'])
    t.match(createCompleteResponse([...events.slice(0, 2), { type: 'end', finishReason }]), {
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
    })
  const filtered = createCompleteResponse([start, { type: 'end', finishReason: 'content_filter' }])
  t.match(filtered, { status: 'incomplete', incomplete_details: { reason: 'content_filter' } })
})

t.test('a response without text is an empty message', async (t) => {
  const response = createCompleteResponse([start, { type: 'delta', tokenIds: [1] }, stop])
  t.match(response.output, [{ type: 'message', content: [{ text: '' }] }])
  t.same((await readBySdk(stream([start, stop]))).output, response.output)
})

t.test('a failure after the first event is reported in the form of the API', async (t) => {
  const writer = new ResponsesStreamWriter(createFrame())
  const text = writer.write([start, { type: 'delta', content: 'hi' }])
  const sent = readEvents(text + writer.fail(new ProxyError('engine_lost', 'The engine is gone')))
  t.match(sent.at(-1), {
    type: 'response.failed',
    response: { status: 'failed', error: { code: 'engine_lost', message: 'The engine is gone' } },
  })
})

t.test('fields that the agent includes are in the response', async (t) => {
  const entry = { token: 'hi', logprob: -0.5, bytes: [104, 105], top_logprobs: [] }
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'hm', tokenIds: [1] },
    { type: 'delta', content: 'hi', tokenIds: [2], logprobsContent: [entry] },
    stop,
  ]
  const include = ['reasoning.encrypted_content', 'message.output_text.logprobs']
  const frame = () => createFrame({ include, return_token_ids: true })
  const sent = stream(events, frame())
  t.same(sent.find((event) => event.type === 'response.output_text.delta').logprobs, [entry])
  for (const response of [createCompleteResponse(events, frame()), sent.at(-1)?.response]) {
    t.equal(response.output[0].encrypted_content, seal('hm'))
    t.same(response.output[1].content[0].logprobs, [entry])
    t.same(response.token_ids, [1, 2])
    t.same(response.prompt_token_ids, [7, 8])
    t.same(response.provider_specific_fields, { token_ids: [1, 2] })
  }
  t.same(
    createCompleteResponse(events, createFrame({ include_reasoning: false })).output.map(
      (item: Json) => item.type,
    ),
    ['message'],
  )
})

const written = fc.oneof(
  fc.string({ unit: 'binary' }).map((input) => JSON.stringify({ input })),
  fc.array(fc.string(), { maxLength: 3 }).map((command) => JSON.stringify({ command })),
  fc.string({ unit: 'binary' }),
)
const anyCompletion = fc.record({
  reasoning: fc.string({ unit: 'binary', maxLength: 20 }),
  content: fc.string({ unit: 'binary', maxLength: 20 }),
  refusal: fc.constantFrom('', 'no'),
  calls: fc.array(fc.tuple(fc.constantFrom('f', 'patch', 'local_shell', 'ns__g', 'odd'), written), {
    maxLength: 3,
  }),
  finishReason: fc.constantFrom('stop', 'length', 'tool_calls'),
})
type AnyCompletion = typeof anyCompletion extends fc.Arbitrary<infer T> ? T : never

/** Splits the completion into deltas of one character, the finest division that an engine could send. */
function toDeltas({ reasoning, content, refusal, calls }: AnyCompletion): GenerationDelta[] {
  const units = (text: string) => text.split('')
  return [
    ...units(reasoning).map((chunk) => ({ type: 'delta' as const, reasoning: chunk })),
    ...units(content).map((chunk) => ({ type: 'delta' as const, content: chunk })),
    ...units(refusal).map((chunk) => ({ type: 'delta' as const, refusal: chunk })),
    ...calls.flatMap(([name, text], index) => [
      { type: 'delta' as const, toolCalls: [{ index, id: `c${index}`, function: { name } }] },
      ...units(text).map((chunk) => ({
        type: 'delta' as const,
        toolCalls: [{ index, function: { arguments: chunk } }],
      })),
    ]),
  ]
}

/** Merges adjacent deltas wherever `merged` is true. */
function merge(deltas: readonly GenerationDelta[], merged: readonly boolean[]): GenerationDelta[] {
  const result: GenerationDelta[] = []
  for (const [index, delta] of deltas.entries()) {
    const last = result.at(-1)
    if (last === undefined || !merged[index % Math.max(merged.length, 1)]) result.push({ ...delta })
    else {
      for (const field of ['reasoning', 'content', 'refusal'] as const) {
        if (delta[field] !== undefined) last[field] = (last[field] ?? '') + delta[field]
      }
      if (delta.toolCalls) last.toolCalls = [...(last.toolCalls ?? []), ...delta.toolCalls]
    }
  }
  return result
}

t.test(
  'a stream split at every character and merged at random adds up to the complete response',
  async (t) => {
    const deltas = fc.tuple(anyCompletion, fc.array(fc.boolean(), { maxLength: 50 }))
    await fc.assert(
      fc.asyncProperty(deltas, async ([completion, merged]) => {
        const end: GenerationEvent = { type: 'end', finishReason: completion.finishReason, usage }
        const events = [start, ...merge(toDeltas(completion), merged), end]
        const response = createCompleteResponse(events)
        const sent = stream(events)
        const final = await readBySdk(sent)
        assert.deepEqual(final.output, response.output)
        assert.equal(final.status, response.status)
      }),
      { numRuns: limitRuns(200) },
    )
    t.pass('for any completion')
  },
)

t.test("the echo of a response is the model's message", async (t) => {
  fc.assert(
    fc.property(anyCompletion, (completion) => {
      const events = [start, ...toDeltas(completion), stop]
      const builder = foldEvents(events)
      const { messages } = lowerItems(createCompleteResponse(events).output)
      const { content, reasoning_content, tool_calls } = (messages[0] ?? {}) as Json
      assert.equal(messages.length, 1)
      assert.equal(content ?? '', builder.content ?? '')
      assert.equal(reasoning_content, builder.reasoning ?? undefined)
      for (const [index, call] of builder.toolCalls.entries()) {
        const echo = tool_calls[index]
        assert.equal(echo.id, call.id)
        assert.equal(echo.function.name, call.function.name)
        assertSameArguments(echo.function.arguments, call.function.arguments)
      }
    }),
  )
  t.pass('for any completion')
})

/**
 * Asserts that arguments are equal, except for spacing and escapes, which clients may change in their echo.
 */
function assertSameArguments(echo: string, original: string): void {
  let parsed: unknown
  try {
    parsed = JSON.parse(original)
  } catch {
    assert.equal(echo, original)
    return
  }
  assert.deepEqual(JSON.parse(echo), parsed)
}
