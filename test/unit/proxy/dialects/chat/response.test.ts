import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../../../src/protocol/canonical/messages.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { buildChatCompletion, ChatStreamWriter } from '../../../../../src/proxy/dialects/chat/response.ts'

const identity = { turnId: 'T', createdS: 5, model: 'requested' }
const minimalOptions = { logprobs: false, tokenIds: false, reasoning: true, streamUsage: false }
const fullOptions = { logprobs: true, tokenIds: true, reasoning: true, streamUsage: true }
const usage = { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 }
const start: GenerationEvent = { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(7, 8) }

function readChunks(text: string) {
  const events = text.split('\n\n').slice(0, -1)
  assert.ok(events.every((event) => event.startsWith('data: ')))
  return events.map((event) => (event === 'data: [DONE]' ? '[DONE]' : JSON.parse(event.slice(6))))
}

/** Merges chunks as a client does, independent of the code under test. */
function merge(chunks: ReturnType<typeof readChunks>) {
  const message: Record<string, string> = {}
  const calls: { id?: string; name: string; arguments: string }[] = []
  const tokenIds: number[] = []
  for (const chunk of chunks) {
    const choice = chunk === '[DONE]' ? undefined : chunk.choices[0]
    for (const field of ['content', 'reasoning_content', 'reasoning', 'refusal']) {
      if (choice?.delta[field] !== undefined) message[field] = (message[field] ?? '') + choice.delta[field]
    }
    for (const call of (choice?.delta.tool_calls ?? []) as ToolCallDelta[]) {
      calls[call.index] ??= { name: '', arguments: '' }
      const known = calls[call.index]!
      if (call.id) known.id = call.id
      known.name += call.function?.name ?? ''
      known.arguments += call.function?.arguments ?? ''
    }
    tokenIds.push(...(choice?.token_ids ?? []))
  }
  return { message, calls, tokenIds }
}

t.test('an agent that requests no extras receives no trace of the recording', async (t) => {
  const builder = new CompletionBuilder()
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', content: 'hi', tokenIds: [1], logprobs: [-0.5], logprobsContent: [] },
    { type: 'delta', tokenIds: [2], logprobs: [-0.5] },
    { type: 'end', finishReason: 'stop', usage },
  ]
  for (const event of events) builder.add(event)
  t.same(JSON.parse(JSON.stringify(buildChatCompletion(identity, minimalOptions, builder))), {
    id: 'chatcmpl-T',
    object: 'chat.completion',
    created: 5,
    model: 'm',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: 'hi', refusal: null },
        logprobs: null,
        finish_reason: 'stop',
      },
    ],
    usage,
  })
  const frame = {
    id: 'chatcmpl-T',
    object: 'chat.completion.chunk',
    created: 5,
    model: 'm',
    system_fingerprint: null,
  }
  const choice = (delta: object, finish: string | null) => ({
    ...frame,
    choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }],
  })
  t.same(readChunks(new ChatStreamWriter(identity, minimalOptions).write(events)), [
    choice({ role: 'assistant', content: '' }, null),
    choice({ content: 'hi' }, null),
    choice({}, 'stop'),
    '[DONE]',
  ])
})

t.test('a response without text has an empty text, or null beside a tool call', async (t) => {
  const getContent = (...deltas: GenerationEvent[]) => {
    const builder = new CompletionBuilder()
    for (const event of [start, ...deltas]) builder.add(event)
    builder.add({ type: 'end', finishReason: 'stop', usage })
    const { choices } = buildChatCompletion(identity, minimalOptions, builder) as {
      choices: { message: object }[]
    }
    return choices[0]?.message
  }
  t.match(getContent(), { content: '' })
  t.match(getContent({ type: 'delta', reasoning: 'hm', tokenIds: [1], logprobs: [-0.5] }), { content: '' })
  const call = { index: 0, id: 'c', name: 'f', arguments: '{}' }
  t.match(getContent({ type: 'delta', toolCalls: [call], tokenIds: [1], logprobs: [-0.5] }), {
    content: null,
  })
})

t.test('token ids, logprobs and usage are sent to an agent that requests them', async (t) => {
  const entry = { token: 'hi', logprob: -0.5, bytes: [104, 105], top_logprobs: [] }
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', content: 'hi', tokenIds: [1], logprobs: [-0.5], logprobsContent: [entry] },
    { type: 'delta', tokenIds: [2], logprobs: [-1] },
    { type: 'end', finishReason: 'stop', stopReason: 2, usage },
  ]
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  const full = JSON.parse(JSON.stringify(buildChatCompletion(identity, fullOptions, builder)))
  t.same(full.prompt_token_ids, [7, 8])
  t.same(full.choices[0].token_ids, [1, 2])
  t.same(full.choices[0].provider_specific_fields, { token_ids: [1, 2] })
  t.same(full.choices[0].logprobs.content, [entry])
  t.equal(full.choices[0].stop_reason, 2)

  const chunks = readChunks(new ChatStreamWriter(identity, fullOptions).write(events))
  t.same(chunks[0].prompt_token_ids, [7, 8])
  t.same(chunks[1].choices[0].token_ids, [1])
  t.same(chunks[1].choices[0].logprobs, { content: [entry], refusal: null })
  t.same(chunks[2].choices[0].delta, {}, 'a token without text is its own chunk for agents that count tokens')
  t.equal(chunks[3].choices[0].stop_reason, 2)
  t.same(chunks[4], { ...chunks[4], choices: [], usage })
  t.ok(chunks.slice(0, 4).every((chunk) => chunk.usage === null))
})

t.test('reasoning is sent under both names that engines use, unless the agent declines it', async (t) => {
  const events: GenerationEvent[] = [
    start,
    { type: 'delta', reasoning: 'hm', tokenIds: [1] },
    { type: 'delta', content: 'hi', reasoning: '!', tokenIds: [2] },
    { type: 'end', finishReason: 'stop' },
  ]
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  for (const reasoning of [true, false]) {
    const responseOptions = { ...minimalOptions, reasoning }
    const { message } = JSON.parse(JSON.stringify(buildChatCompletion(identity, responseOptions, builder)))
      .choices[0]
    const shown = reasoning ? { reasoning_content: 'hm!', reasoning: 'hm!' } : {}
    t.strictSame(getReasoning(message), shown)
    const merged = merge(readChunks(new ChatStreamWriter(identity, responseOptions).write(events)))
    t.strictSame(getReasoning(merged.message), shown)
    t.equal(merged.message.content, 'hi')
  }
})

function getReasoning({ reasoning_content, reasoning }: Record<string, string>): object {
  return reasoning_content === undefined && reasoning === undefined ? {} : { reasoning_content, reasoning }
}

const anyDelta: fc.Arbitrary<GenerationDelta> = fc
  .record(
    {
      content: fc.string({ unit: 'binary' }),
      reasoning: fc.string(),
      refusal: fc.string(),
      tokenIds: fc.array(fc.nat(), { maxLength: 3 }),
      toolCalls: fc.array(
        fc.record(
          {
            index: fc.constantFrom(0, 1),
            id: fc.constantFrom('a', 'b'),
            function: fc.record({ name: fc.string(), arguments: fc.string() }, { requiredKeys: [] }),
          },
          { requiredKeys: ['index'] },
        ),
        { maxLength: 2 },
      ) as fc.Arbitrary<ToolCallDelta[]>,
    },
    { requiredKeys: [] },
  )
  .map((fields) => ({ type: 'delta', ...fields }))

t.test('a stream with any batches of events adds up to the complete response', async (t) => {
  fc.assert(
    fc.property(fc.array(anyDelta, { maxLength: 12 }), fc.nat(5), (deltas, cut) => {
      const events: GenerationEvent[] = [start, ...deltas, { type: 'end', finishReason: 'stop' }]
      const builder = new CompletionBuilder()
      for (const event of events) builder.add(event)
      const full = JSON.parse(JSON.stringify(buildChatCompletion(identity, fullOptions, builder))).choices[0]
      const writer = new ChatStreamWriter(identity, fullOptions)
      const merged = merge(readChunks(writer.write(events.slice(0, cut)) + writer.write(events.slice(cut))))
      assert.equal(merged.message.content, full.message.content ?? '')
      assert.deepEqual(getReasoning(merged.message), getReasoning(full.message))
      assert.equal(merged.message.refusal ?? null, full.message.refusal)
      assert.deepEqual(merged.tokenIds, full.token_ids)
      const calls = (full.message.tool_calls ?? []) as {
        id: string
        function: { name: string; arguments: string }
      }[]
      const byName = (list: { name: string; arguments: string }[]) =>
        list.map((c) => c.name + c.arguments).sort()
      assert.deepEqual(byName(merged.calls.filter(Boolean)), byName(calls.map((call) => call.function)))
    }),
  )
  t.pass('for any stream')
})
