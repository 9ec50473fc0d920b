import assert from 'node:assert/strict'
import { Anthropic } from '@anthropic-ai/sdk'
import type { Message } from '@anthropic-ai/sdk/resources/messages'
import fc from 'fast-check'
import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
} from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { lowerMessagesRequest } from '../../../../../src/proxy/dialects/messages/request.ts'
import { buildMessage } from '../../../../../src/proxy/dialects/messages/response.ts'
import { MessagesStreamWriter } from '../../../../../src/proxy/dialects/messages/stream.ts'

const identity = { turnId: 'ab-cd', createdS: 5, model: 'requested' }
const responseOptions = { logprobs: false, tokenIds: false, reasoning: true, streamUsage: true }
const start: GenerationEvent = { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(7, 8) }
const end: GenerationEnd = {
  type: 'end',
  finishReason: 'stop',
  usage: { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 },
}

function formatResponse(events: readonly GenerationEvent[], reasoning = true): string {
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  return JSON.stringify(buildMessage(identity, { ...responseOptions, reasoning }, builder))
}

function createResponse(events: readonly GenerationEvent[], reasoning = true): Message {
  return JSON.parse(formatResponse(events, reasoning))
}

/** Returns the events of a stream as name and data, and asserts that the name equals the type in the data. */
function readEvents(text: string) {
  return text
    .split('\n\n')
    .slice(0, -1)
    .map((event) => {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? assert.fail(event)
      const parsed = JSON.parse(data!)
      assert.equal(parsed.type, name)
      return parsed
    })
}

function stream(events: readonly GenerationEvent[], reasoning = true) {
  return readEvents(new MessagesStreamWriter(identity, { ...responseOptions, reasoning }).write(events))
}

/** Returns the message that the official client reads from a stream with chunks of this many bytes. */
async function readBySdk(text: string, chunkBytes: number): Promise<Message> {
  const bytes = new TextEncoder().encode(text)
  const body = new ReadableStream({
    start(controller) {
      for (let index = 0; index < bytes.length; index += chunkBytes)
        controller.enqueue(bytes.slice(index, index + chunkBytes))
      controller.close()
    },
  })
  const headers = { 'content-type': 'text/event-stream' }
  const client = new Anthropic({ apiKey: 'none', fetch: async () => new Response(body, { headers }) })
  const request = { model: 'm', max_tokens: 1, messages: [{ role: 'user' as const, content: 'hi' }] }
  return client.messages.stream(request).finalMessage()
}

const callEvents: GenerationEvent[] = [
  start,
  { type: 'delta', reasoning: 'Hm', tokenIds: [1] },
  { type: 'delta', reasoning: '.', tokenIds: [2] },
  { type: 'delta', content: '\n\n', tokenIds: [3] },
  { type: 'delta', content: 'Let me', tokenIds: [4] },
  { type: 'delta', content: ' see.', tokenIds: [5] },
  {
    type: 'delta',
    toolCalls: [{ index: 0, id: 'c0', type: 'function', function: { name: 'f', arguments: '' } }],
  },
  { type: 'delta', toolCalls: [{ index: 0, function: { arguments: '{"x":' } }], tokenIds: [6] },
  { type: 'delta', toolCalls: [{ index: 0, function: { arguments: ' "é"}' } }], tokenIds: [7] },
  { type: 'delta', content: '\n', tokenIds: [8] },
  { type: 'delta', toolCalls: [{ index: 1, function: { name: 'g', arguments: '{}' } }], tokenIds: [9] },
  { type: 'end', finishReason: 'tool_calls' },
]

t.test('a response has reasoning, text and tool calls', async (t) => {
  t.same(createResponse(callEvents), {
    id: 'msg_abcd',
    type: 'message',
    role: 'assistant',
    model: 'm',
    content: [
      { type: 'thinking', thinking: 'Hm.', signature: 'llm-proxy' },
      { type: 'text', text: '\n\nLet me see.\n' },
      { type: 'tool_use', id: 'c0', name: 'f', input: { x: 'é' }, caller: { type: 'direct' } },
      { type: 'tool_use', id: 'toolu_abcd_1', name: 'g', input: {}, caller: { type: 'direct' } },
    ],
    stop_reason: 'tool_use',
    stop_sequence: null,
    usage: {
      input_tokens: 2,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: 0,
      output_tokens: 9,
    },
  })
})

t.test('the same response as a stream: one block after another, each delta on arrival', async (t) => {
  const head = { id: 'msg_abcd', role: 'assistant', model: 'm', content: { length: 0 }, stop_reason: null }
  const block = (index: number, content_block: object) => ({
    type: 'content_block_start',
    index,
    content_block,
  })
  const createChunk = (index: number, delta: object) => ({ type: 'content_block_delta', index, delta })
  const stop = (index: number) => ({ type: 'content_block_stop', index })
  const events = stream(callEvents)
  t.match(events, [
    { type: 'message_start', message: { ...head, usage: { input_tokens: 2, output_tokens: 0 } } },
    block(0, { type: 'thinking', thinking: '', signature: '' }),
    createChunk(0, { type: 'thinking_delta', thinking: 'Hm' }),
    createChunk(0, { type: 'thinking_delta', thinking: '.' }),
    createChunk(0, { type: 'signature_delta', signature: 'llm-proxy' }),
    stop(0),
    block(1, { type: 'text', text: '' }),
    createChunk(1, { type: 'text_delta', text: '\n\nLet me' }),
    createChunk(1, { type: 'text_delta', text: ' see.' }),
    stop(1),
    block(2, { type: 'tool_use', id: 'c0', name: 'f' }),
    createChunk(2, { type: 'input_json_delta', partial_json: '{"x":' }),
    createChunk(2, { type: 'input_json_delta', partial_json: ' "é"}' }),
    stop(2),
    block(3, { type: 'tool_use', id: 'toolu_abcd_1', name: 'g' }),
    createChunk(3, { type: 'input_json_delta', partial_json: '{}' }),
    stop(3),
    {
      type: 'message_delta',
      delta: { stop_reason: 'tool_use', stop_sequence: null },
      usage: { input_tokens: 2, output_tokens: 9 },
    },
    { type: 'message_stop' },
  ])
  t.equal(events.length, 19, 'and no other events')
  t.strictSame([events[10].content_block.input, events[14].content_block.input], [{}, {}])
})

t.test('reasoning that the agent declines is omitted', async (t) => {
  const types = createResponse(callEvents, false).content.map((block) => block.type)
  t.same(types, ['text', 'tool_use', 'tool_use'])
  t.notMatch(JSON.stringify(stream(callEvents, false)), /thinking/)
})

t.test('hidden reasoning is sent in a signature, and restored from it', async (t) => {
  const sealing = { ...responseOptions, reasoning: false, sealedReasoning: true }
  const builder = new CompletionBuilder()
  for (const event of callEvents) builder.add(event)
  const { content } = buildMessage(identity, sealing, builder) as Message
  t.match(content[0], { type: 'thinking', thinking: '', signature: /^llm-proxy:/ })
  const read = await readBySdk(new MessagesStreamWriter(identity, sealing).write(callEvents), 64)
  t.same(read.content[0], content[0])
  const back = lowerMessagesRequest({
    model: 'm',
    max_tokens: 1,
    messages: [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: read.content },
      { role: 'user', content: 'go on' },
    ],
  })
  t.match(back.body.messages, { 1: { reasoning_content: 'Hm.' } })
})

t.test('finish reasons are converted to stop reasons of the API', async (t) => {
  const getStop = (fields: Partial<GenerationEnd>, delta: Partial<GenerationDelta> = { content: 'x' }) => {
    const events: GenerationEvent[] = [start, { type: 'delta', ...delta }, { ...end, ...fields }]
    const { stop_reason, stop_sequence } = createResponse(events)
    const lastDelta = stream(events).at(-2).delta
    assert.deepEqual([lastDelta.stop_reason, lastDelta.stop_sequence], [stop_reason, stop_sequence])
    return [stop_reason, stop_sequence]
  }
  t.same(getStop({}), ['end_turn', null])
  t.same(getStop({ stopReason: 151645 }), ['end_turn', null], 'a stop token is the end of a turn')
  t.same(getStop({ stopReason: 'END' }), ['stop_sequence', 'END'])
  t.same(getStop({ finishReason: 'length' }), ['max_tokens', null])
  t.same(getStop({ finishReason: 'content_filter' }), ['refusal', null])
  const toolCalls = [{ index: 0, id: 'a', function: { name: 'f', arguments: '{}' } }]
  t.same(getStop({ finishReason: 'tool_calls' }, { toolCalls }), ['tool_use', null])
  t.same(
    getStop({ finishReason: 'stop' }, { toolCalls }),
    ['tool_use', null],
    'a forced tool call ends with stop',
  )
  t.same(getStop({ finishReason: 'length' }, { toolCalls }), ['max_tokens', null])
  for (const finishReason of ['repetition', 'insufficient_system_resource']) {
    t.same(getStop({ finishReason }), ['max_tokens', null], 'the engine aborted it')
    t.same(getStop({ finishReason }, { toolCalls }), ['max_tokens', null])
  }
})

t.test('cached input and thinking are counted separately', async (t) => {
  const usage = {
    prompt_tokens: 10,
    completion_tokens: 5,
    total_tokens: 15,
    prompt_tokens_details: { cached_tokens: 8 },
    completion_tokens_details: { reasoning_tokens: 3 },
  }
  t.match(createResponse([start, { ...end, usage }]).usage, {
    input_tokens: 2,
    cache_read_input_tokens: 8,
    output_tokens: 5,
    output_tokens_details: { thinking_tokens: 3 },
  })
})

t.test('input that vLLM wrote to its cache is counted separately', async (t) => {
  const prompt_tokens_details = { cached_tokens: 32, created_cache_tokens: 384 }
  const usage = { prompt_tokens: 434, completion_tokens: 5, total_tokens: 439, prompt_tokens_details }
  const counted = {
    input_tokens: 18,
    cache_creation_input_tokens: 384,
    cache_read_input_tokens: 32,
    output_tokens: 5,
  }
  t.strictSame(createResponse([start, { ...end, usage }]).usage, counted)
  t.strictSame(stream([start, { ...end, usage }]).at(-2).usage, counted)
  const without = { ...usage, prompt_tokens_details: { cached_tokens: null, created_cache_tokens: null } }
  t.match(createResponse([start, { ...end, usage: without } as never]).usage, {
    input_tokens: 434,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
  })
})

t.test('tokens that the engine did not count are counted by their ids, and are 0 without ids', async (t) => {
  const uncounted: GenerationEnd = { type: 'end', finishReason: 'stop' }
  const delta: GenerationDelta = { type: 'delta', content: 'hi', tokenIds: [1, 2, 3] }
  t.match(createResponse([start, delta, uncounted]).usage, { input_tokens: 2, output_tokens: 3 })
  t.match(stream([start, delta, uncounted]).at(-2).usage, { input_tokens: 2, output_tokens: 3 })
  const withoutIds: GenerationEvent = { type: 'start', engine: 'e', model: 'm' }
  t.match(createResponse([withoutIds, uncounted]).usage, { input_tokens: 0, output_tokens: 0 })
  t.match(createResponse([uncounted]).usage, { input_tokens: 0, output_tokens: 0 }, 'nor a start')
})

t.test('an empty or blank response has no blocks', async (t) => {
  for (const content of ['', ' \n']) {
    const events: GenerationEvent[] = [start, { type: 'delta', content, tokenIds: [1] }, end]
    t.same(createResponse(events).content, [])
    t.same(
      stream(events).map((event) => event.type),
      ['message_start', 'message_delta', 'message_stop'],
    )
  }
})

t.test('numbers in arguments reach the agent as the model wrote them', async (t) => {
  const written = '{"id":9007199254740993,"x":[1.0]}'
  const toolCalls = [{ index: 0, id: 'a', function: { name: 'f', arguments: written } }]
  const response = formatResponse([start, { type: 'delta', toolCalls }, end])
  t.ok(response.includes(`"input":${written}`), response)
})

t.test('a tool call that is closed by a text may have further deltas without arguments', async (t) => {
  const delta = (written: string) => [{ index: 0, id: 'a', function: { name: 'f', arguments: written } }]
  const sent = stream([
    start,
    { type: 'delta', toolCalls: [{ index: 0, id: 'a', function: { name: 'f', arguments: '{}' } }] },
    { type: 'delta', content: 'Hm' },
    { type: 'delta', toolCalls: delta('') },
    { type: 'delta', toolCalls: delta('\n') },
    end,
  ])
  t.equal(sent.at(-1)?.type, 'message_stop')
  t.equal(sent.filter(({ type }) => type === 'content_block_start').length, 2)
})

t.test('arguments that are not a JSON object reach the agent as the model wrote them', async (t) => {
  const deep = `{"x": ${'['.repeat(50_000)}${']'.repeat(50_000)}}`
  for (const written of ['{"x": 1', '[1]', '"x"', 'null', deep]) {
    const toolCalls = [{ index: 0, id: 'a', function: { name: 'f', arguments: written } }]
    t.match(createResponse([start, { type: 'delta', toolCalls }, end]).content, [
      { input: { INVALID_JSON: written } },
    ])
  }
  const silent = [{ index: 0, id: 'a', function: { name: 'f' } }]
  const { content } = createResponse([start, { type: 'delta', toolCalls: silent }, end])
  t.strictSame(content, [{ type: 'tool_use', id: 'a', name: 'f', input: {}, caller: { type: 'direct' } }])
})

t.test('an engine that returns to an earlier tool call causes an error', async (t) => {
  const createChunk = (index: number) => ({
    index,
    id: `c${index}`,
    function: { name: 'f', arguments: '{}' },
  })
  const toolCalls = [createChunk(0), createChunk(1), createChunk(0)]
  t.throws(() => stream([start, { type: 'delta', toolCalls }]), { code: 'engine_failed' })
})

t.test('the official client reads the stream with chunks of any size', async (t) => {
  const text = new MessagesStreamWriter(identity, responseOptions).write(callEvents)
  const expected = createResponse(callEvents).content
  for (const chunkBytes of [1, 2, 3, 7, 64, 100_000]) {
    const { content, stop_reason } = await readBySdk(text, chunkBytes)
    t.equal(stop_reason, 'tool_use')
    t.match(content, [expected[0], { type: 'text', text: '\n\nLet me see.' }, expected[2], expected[3]])
  }
})

interface AnyResponse {
  reasoning: string
  content: string
  calls: { name: string; input: Record<string, string> }[]
  between: string
}

/** Blocks in the order in which a model writes them; text between them may be white space. */
const anyResponse: fc.Arbitrary<AnyResponse> = fc.record({
  reasoning: fc.string(),
  content: fc.string({ unit: 'binary' }),
  calls: fc.array(
    fc.record({ name: fc.string({ minLength: 1 }), input: fc.dictionary(fc.string(), fc.json()) }),
    {
      maxLength: 3,
    },
  ),
  between: fc.constantFrom('', '\n', ' and '),
})

/** Splits a response into deltas of one character each. */
function splitIntoCharacters({ reasoning, content, calls, between }: AnyResponse): GenerationDelta[] {
  const deltas: GenerationDelta[] = []
  for (const character of reasoning) deltas.push({ type: 'delta', reasoning: character })
  for (const character of content) deltas.push({ type: 'delta', content: character })
  calls.forEach(({ name, input }, index) => {
    if (index > 0) for (const character of between) deltas.push({ type: 'delta', content: character })
    deltas.push({ type: 'delta', toolCalls: [{ index, id: `c${index}`, function: { name } }] })
    for (const character of JSON.stringify(input))
      deltas.push({ type: 'delta', toolCalls: [{ index, function: { arguments: character } }] })
  })
  return deltas
}

/**
 * Merges adjacent deltas of one kind where `joins` is true, because engines may split a response anywhere.
 */
function merge(deltas: readonly GenerationDelta[], joins: readonly boolean[]): GenerationDelta[] {
  const result: GenerationDelta[] = []
  deltas.forEach((delta, index) => {
    const last = result.at(-1)
    if (!last || !joins[index % joins.length]) result.push(delta)
    else if (last.content !== undefined && delta.content !== undefined)
      result[result.length - 1] = { ...last, content: last.content + delta.content }
    else if (last.reasoning !== undefined && delta.reasoning !== undefined)
      result[result.length - 1] = { ...last, reasoning: last.reasoning + delta.reasoning }
    else if (last.toolCalls && delta.toolCalls)
      result[result.length - 1] = { ...last, toolCalls: [...last.toolCalls, ...delta.toolCalls] }
    else result.push(delta)
  })
  return result
}

/** Merges events as a client does, independent of the code under test. */
function mergeEvents(events: ReturnType<typeof readEvents>) {
  const blocks: { type: string; text: string; name?: string }[] = []
  let open = -1
  for (const event of events) {
    if (event.type === 'content_block_start') {
      assert.equal(open, -1, 'a block opens when no other one is open')
      assert.equal(event.index, blocks.length, 'blocks are numbered in order')
      open = event.index
      blocks.push({ type: event.content_block.type, text: '', name: event.content_block.name })
    } else if (event.type === 'content_block_delta') {
      assert.equal(event.index, open)
      const { text, thinking, partial_json } = event.delta
      blocks[event.index]!.text += text ?? thinking ?? partial_json ?? ''
    } else if (event.type === 'content_block_stop') {
      assert.equal(event.index, open)
      open = -1
    }
  }
  assert.equal(open, -1, 'every block is closed')
  const getText = (type: string) => blocks.filter((block) => block.type === type).map((block) => block.text)
  return {
    thinking: getText('thinking').join(''),
    text: getText('text').join(''),
    calls: blocks
      .filter((block) => block.type === 'tool_use')
      .map(({ name, text }) => [name, JSON.parse(text)]),
  }
}

t.test('a stream with any chunks and batches has the content of the complete response', async (t) => {
  const joins = fc.array(fc.boolean(), { minLength: 1, maxLength: 7 })
  fc.assert(
    fc.property(anyResponse, joins, fc.nat(), (response, joins, seed) => {
      const deltas = merge(splitIntoCharacters(response), joins)
      const events: GenerationEvent[] = [start, ...deltas, end]
      const writer = new MessagesStreamWriter(identity, responseOptions)
      const cut = seed % events.length
      const streamedContent = mergeEvents(
        readEvents(writer.write(events.slice(0, cut)) + writer.write(events.slice(cut))),
      )
      const { content } = createResponse(events)
      assert.equal(
        streamedContent.thinking,
        content.map((block) => (block.type === 'thinking' ? block.thinking : '')).join(''),
      )
      // White space at the end of a text may have been the start of another block.
      const text = content.map((block) => (block.type === 'text' ? block.text : '')).join('')
      assert.equal(streamedContent.text.trimEnd(), text.trimEnd())
      assert.deepEqual(
        streamedContent.calls,
        response.calls.map(({ name, input }) => [name, JSON.parse(JSON.stringify(input))]),
      )
    }),
  )
  t.pass('for any response')
})
