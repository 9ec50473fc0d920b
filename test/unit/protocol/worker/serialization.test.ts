import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { ERROR_CATALOGUE, type ErrorCode, ProxyError } from '../../../../src/base/errors.ts'
import type { GenerationDelta, GenerationEvent } from '../../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'
import * as frames from '../../../../src/protocol/worker/frames.ts'
import { MIN_REPORTED_IDS } from '../../../../src/protocol/worker/reported-prompts.ts'
import {
  requestFromV2,
  requestToV1,
  requestToV2,
  serializeRequest,
} from '../../../../src/protocol/worker/request-frames.ts'
import {
  createChunkFrame,
  createFailureFrame,
  createResponseFrame,
  parseChunk,
  parseResponseEnd,
} from '../../../../src/protocol/worker/response-frames.ts'
import { packTokenIds, unpackTokenIds } from '../../../../src/protocol/worker/token-ids.ts'
import { parseResponseV1 } from '../../../../src/proxy/relay/responses-v1.ts'

const ids = fc.array(fc.nat({ max: 2 ** 31 - 1 }), { maxLength: 20 })
const text = fc.string({ unit: 'binary' })
/** Converts numbers as JSON does: minus zero becomes zero. */
const json = fc.jsonValue().map((value): unknown => JSON.parse(JSON.stringify(value)))
const fields = fc.dictionary(fc.string({ minLength: 1 }), json)

/** JSON writes minus zero as zero. */
const logprob = fc.double({ noDefaultInfinity: true, max: 0 }).map((value) => value + 0)

const delta: fc.Arbitrary<GenerationDelta> = fc.record(
  {
    type: fc.constant('delta' as const),
    content: text,
    reasoning: text,
    refusal: text,
    toolCalls: fc.array(fc.record({ index: fc.nat(), id: text, function: fc.record({ arguments: text }) })),
    tokenIds: ids,
    logprobs: fc.array(logprob),
    logprobsContent: fc.array(
      fc.record({
        token: text,
        logprob: logprob.filter(Number.isFinite),
        bytes: fc.constant(null),
        top_logprobs: fc.constant([]),
      }),
    ),
    extra: fields,
  },
  { requiredKeys: ['type'] },
)

/** Returns the receiver's view of a frame's text. */
function receive<Schema extends { isValid(frame: unknown): boolean }>(check: Schema, frame: string) {
  const value = JSON.parse(frame)
  assert.ok(check.isValid(value))
  return value
}

// fast-check makes objects without a prototype.
const plain = <T>(value: T): T => structuredClone(value)
const sameEvents = (a: readonly GenerationEvent[], b: readonly GenerationEvent[]) =>
  assert.deepEqual(plain(a), plain(b))

t.test('every batch of events survives serialization', async (t) => {
  fc.assert(
    fc.property(fc.array(delta, { minLength: 1 }), ids, (deltas, promptIds) => {
      const events: GenerationEvent[] = [
        {
          type: 'start',
          engine: 'e',
          model: 'm',
          promptTokenIds: PromptIds.from(promptIds),
          weightVersion: '1',
        },
        ...deltas,
      ]
      const chunk = receive(frames.chunk, createChunkFrame('r', events)!(1))
      sameEvents(parseChunk(chunk, 'w'), [{ ...events[0]!, engine: 'w/e' } as GenerationEvent, ...deltas])
    }),
  )
  t.pass('in random batches')
})

t.test('a prompt survives serialization whatever part the receiver has', async (t) => {
  fc.assert(
    fc.property(ids, ids, fc.nat(50), (base, more, keep) => {
      const promptTokenIds = PromptIds.from([...base.slice(0, keep), ...more])
      const events: GenerationEvent[] = [{ type: 'start', engine: 'e', promptTokenIds }]
      const known = PromptIds.from(base)
      const chunk = receive(frames.chunk, createChunkFrame('r', events, known)!(1))
      const [start] = parseChunk(chunk, 'w', known)
      assert.ok(start?.type === 'start')
      assert.deepEqual([...start.promptTokenIds!], [...promptTokenIds])
    }),
  )
  t.pass('as a difference')
})

t.test('the end of a completion survives serialization', async (t) => {
  const usage = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 }
  for (const end of [
    { type: 'end', finishReason: 'stop' },
    { type: 'end', finishReason: 'length', stopReason: null, usage, weightVersion: '9' },
    { type: 'end', finishReason: 'stop', stopReason: 151645 },
    { type: 'end', finishReason: 'abort', stopReason: '</s>' },
    { type: 'end', finishReason: 'stop', promptTokenIds: PromptIds.of(1, 151_645) },
  ] as const) {
    t.strictSame(parseResponseEnd(receive(frames.responseV2, createResponseFrame('r', end)(7))), end)
  }
})

/** Whether a worker may report this error code. */
const isReportable = (code: string) =>
  /^(engine_.*|invalid_request|unsupported|context_length_exceeded|no_worker|policy_not_served|queue_full|shutting_down)$/.test(
    code,
  )

t.test('every error that a worker may report survives serialization', async (t) => {
  for (const code of (Object.keys(ERROR_CATALOGUE) as ErrorCode[]).filter(isReportable)) {
    const error = new ProxyError(code, 'why', { param: 'p', retryAfterS: 2, engineBody: { a: 1 } })
    const response = receive(frames.responseV2, createFailureFrame('r', error)(1))
    t.throws(() => parseResponseEnd(response), {
      code,
      status: error.status,
      message: 'why',
      param: 'p',
      retryAfterS: 2,
      engineBody: { a: 1 },
    })
  }
})

t.test(
  'an error reports whether the weights changed, and not from a worker of an older version',
  async (t) => {
    for (const weightsChanged of [true, false]) {
      const error = new ProxyError('engine_lost', 'why')
      error.weightsChanged = weightsChanged
      const text = createFailureFrame('r', error)(1)
      t.equal(text.includes('weights_changed'), weightsChanged, 'an older proxy receives no unknown field')
      t.throws(() => parseResponseEnd(receive(frames.responseV2, text)), {
        code: 'engine_lost',
        weightsChanged,
      })
    }
  },
)

t.test("a worker cannot report the proxy's own errors", async (t) => {
  const others = (Object.keys(ERROR_CATALOGUE) as ErrorCode[]).filter((code) => !isReportable(code))
  t.ok(others.includes('unauthorized') && others.includes('agent_gone') && others.includes('session_ended'))
  for (const code of others) {
    const error = { code, message: 'why', status: 500 }
    const response = {
      type: 'completion_response',
      request_id: 'r',
      seq: 1,
      finish_reason: null,
      error,
    } as const
    t.throws(() => parseResponseEnd(response), { code: 'engine_failed', message: 'why' }, code)
  }
})

t.test('a response without a finish reason has failed', async (t) => {
  const response = { type: 'completion_response', request_id: 'r', seq: 1, finish_reason: null, error: null }
  t.throws(() => parseResponseEnd(response as never), { code: 'engine_failed', message: /finish reason/ })
})

t.test('an error code of a later version counts as engine_failed and keeps its status', async (t) => {
  const error = { code: 'constructor', message: 'why', status: 507 }
  t.throws(
    () =>
      parseResponseEnd({ type: 'completion_response', request_id: 'r', seq: 1, finish_reason: null, error }),
    { code: 'engine_failed', status: 507 },
  )
})

t.test('every request survives serialization, key by key', async (t) => {
  const messages = fc.array(fc.record({ role: fc.constant('user'), content: text }))
  const chat = fc.record(
    {
      messages,
      tools: fc.option(fc.array(fields)),
      model: text,
      temperature: fc.option(fc.double({ noNaN: true })),
      seed: json,
    },
    { requiredKeys: ['messages'] },
  )
  const completion = fc.record(
    { prompt: fc.oneof(text, ids), stop: fc.option(fc.array(text)), top_k: json },
    { requiredKeys: ['prompt'] },
  )
  const body = fc.oneof(
    fc.record({ kind: fc.constant('chat'), body: chat }),
    fc.record({ kind: fc.constant('completion'), body: completion }),
  )
  fc.assert(
    fc.property(body, fc.boolean(), fc.option(fc.constant('critic')), (content, stream, subagent) => {
      const common = { requestId: 'r', sessionId: 's', stream, ...(subagent && { subagent }) }
      const request = JSON.parse(JSON.stringify({ ...content, ...common })) as GenerationRequest
      const frame = receive(frames.requestV2, JSON.stringify(requestToV2(request, 'r')))
      assert.deepEqual(requestFromV2(frame), request)
    }),
  )
  t.pass('in random bodies')
})

t.test('a chat request in token mode keeps its ids, and is not sent to version 1', async (t) => {
  const promptTokenIds = PromptIds.of(1, 2, 151_645)
  const request = {
    kind: 'chat',
    requestId: 'r',
    sessionId: 's',
    stream: true,
    body: { messages: [] },
    promptTokenIds,
  } as const
  const frame = receive(
    frames.requestV2,
    serializeRequest({ ...request, body: { messages: [] } }, 'r', 2).toString(),
  )
  t.strictSame(requestFromV2(frame), request)
  t.throws(() => requestToV1({ ...request, body: { messages: [] } }, 'r'), { code: 'unsupported' })
})

/** The fields of a request of which a worker needs none: the proxy alone reads them. */
type ProxyField =
  | ('rejectOverlong' | 'choiceOf' | 'continuesAfter' | 'lastMessage' | 'messagesJson' | 'toolsJson')
  | ('onDispatched' | 'promptLists' | 'log' | 'spans')

t.test('every field that concerns an engine survives serialization', async (t) => {
  // The type makes a new field of requests an error here, until it is serialized or listed above.
  const request: Required<Omit<GenerationRequest & { kind: 'chat' }, ProxyField>> = {
    ...{ kind: 'chat', requestId: 'r', sessionId: 's', stream: true, body: { model: 'm', messages: [] } },
    ...{ subagent: 'critic', record: { samplingMask: true, routedExperts: true }, expertsStart: 3 },
    ...{ mustServe: true, minWeightVersion: '7', callFormat: 'hermes', mayReason: true },
    promptTokenIds: PromptIds.of(1, 2, 151_645),
    images: { tokenId: 2, tokens: [1], edges: [1, 3] },
    traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
  }
  const frame = receive(frames.requestV2, serializeRequest(request, 'r', 2).toString())
  t.strictSame(requestFromV2(frame), request)
  const { mustServe: _, ...unrestricted } = request
  const text = serializeRequest({ ...unrestricted, mustServe: false }, 'r', 2).toString()
  t.notMatch(text, 'must_serve', 'a worker of an older version receives no unknown field')
})

t.test('messages that are already JSON are sent unchanged', async (t) => {
  const messages = [
    { role: 'user', content: 'a' },
    { role: 'assistant', content: '"b"' },
  ]
  const request = {
    kind: 'chat',
    requestId: 'r',
    sessionId: 's',
    stream: true,
    body: { messages, seed: 1 },
  } as GenerationRequest
  const messagesJson = [Buffer.from(JSON.stringify(messages).slice(1, -1))]
  for (const version of [1, 2] as const) {
    const written = serializeRequest(request, 'r', version).toString()
    t.strictSame(
      JSON.parse(serializeRequest({ ...request, messagesJson }, 'r', version).toString()),
      JSON.parse(written),
    )
  }
})

t.test('a version-1 worker gets max_completion_tokens in preference to max_tokens', async (t) => {
  const request = (body: object) =>
    ({
      kind: 'chat',
      requestId: 'r',
      sessionId: 's',
      stream: false,
      body: { messages: [], ...body },
    }) as GenerationRequest
  t.equal(requestToV1(request({ max_completion_tokens: 5, max_tokens: 9 }), 'r').max_tokens, 5)
  t.equal(requestToV1(request({ max_completion_tokens: null, max_tokens: 9 }), 'r').max_tokens, 9)
  t.equal(requestToV1(request({}), 'r').max_tokens, 2048)
})

t.test('a version-1 worker cannot serve a text completion', async (t) => {
  const request = {
    kind: 'completion',
    requestId: 'r',
    sessionId: 's',
    stream: false,
    body: { prompt: 'x' },
  } as const
  t.throws(() => requestToV1(request, 'r'), { code: 'unsupported', status: 400 })
})

const v1 = (fields: object) =>
  parseResponseV1({ type: 'completion_response', request_id: 'r', ...fields }, 'w')

t.test('version 1: an absent field counts as null', async (t) => {
  t.strictSame(v1({}), [
    { type: 'start', engine: 'w' },
    { type: 'end', finishReason: 'stop' },
  ])
})

t.test(
  'version 1: content_text takes precedence over completion_text, which may contain tool-call markup',
  async (t) => {
    t.match(v1({ content_text: 'a', completion_text: 'b' })[1], { content: 'a' })
    t.match(v1({ content_text: null, completion_text: 'b' })[1], { content: 'b' })
    t.equal(v1({ content_text: '', completion_text: 'b' }).length, 2, 'an empty text is not a chunk')
    const toolCalls = [{ function: { name: 'f' } }]
    t.match(v1({ content_text: null, completion_text: '<tool_call>', tool_calls: toolCalls })[1], {
      content: undefined,
      toolCalls: [{ index: 0, id: 'call_r_0', type: 'function', function: { name: 'f', arguments: '{}' } }],
    })
  },
)

t.test('version 1: tool calls may be JSON text, and arguments an object', async (t) => {
  const list = [{ id: 'c', type: 'function', function: { name: 'f', arguments: { a: 1 } } }]
  const expected = { toolCalls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{"a":1}' } }] }
  t.match(v1({ tool_calls: list })[1], expected)
  t.match(v1({ tool_calls: JSON.stringify(list) })[1], expected)
  t.match(v1({ tool_calls: list }).at(-1), { type: 'end', finishReason: 'tool_calls' })
  for (const broken of ['{', '{}', '[{}]', 'null'])
    t.throws(() => v1({ tool_calls: broken }), { code: 'engine_failed' })
})

t.test('token ids survive packing, and invalid text is rejected', async (t) => {
  fc.assert(fc.property(ids, (list) => assert.deepEqual([...unpackTokenIds(packTokenIds(list))], list)))
  t.equal(packTokenIds([1, 256]), 'AQAAAAABAAA=', 'little-endian on every platform')
  t.throws(() => unpackTokenIds('AAA='), RangeError)
  t.throws(() => unpackTokenIds(Buffer.from([0, 0, 0, 128]).toString('base64')), RangeError)
})

t.test('invalid frames are distinguished from frames of any type', async (t) => {
  for (const garbage of ['', '{', 'null', '1', '"x"', '[]', '{}', '{"type":null}']) {
    t.equal(frames.parseFrame(garbage, false), undefined, garbage)
  }
  t.equal(frames.parseFrame('{"type":"ping"}', true), undefined, 'binary')
  t.same(frames.parseFrame('{"type":"anything","x":1}', false), { type: 'anything', x: 1 })
  t.same(
    frames.parseFrame('{"type":"x","log_probs":[NaN,-Infinity,-0.5],"text":"\\"NaN\\", -Infinity"}', false),
    { type: 'x', log_probs: [null, null, -0.5], text: '"NaN", -Infinity' },
    "Python's non-finite numbers",
  )
})

t.test('the error of an invalid frame names the position and the reason without its content', async (t) => {
  const bad = { type: 'completion_chunk', request_id: 'r', seq: 1, deltas: [{ content: 12345 }] }
  t.equal(frames.chunk.explain(bad), '/deltas/0/content must be string')
})

t.test(
  "a request's prompt survives serialization whatever part the worker has, and is sent without messages",
  async (t) => {
    const many = fc.array(fc.nat({ max: 99 }), { minLength: 900, maxLength: 1_200 })
    fc.assert(
      fc.property(many, ids, fc.nat(1_300), fc.boolean(), (base, more, keep, acceptsShared) => {
        const promptTokenIds = PromptIds.from([...base.slice(0, keep), ...more])
        const body = { messages: [{ role: 'user', content: 'x' }] }
        const request = { kind: 'chat', requestId: 'r', sessionId: 's', stream: true, body, promptTokenIds }
        const known = PromptIds.from(base)
        const reported = { requestId: 'before', ids: known, reportedBy: {} }
        const text = serializeRequest(request as GenerationRequest, 'r', 2, {
          reported,
          acceptsShared,
        }).toString()
        const frame = receive(frames.requestV2, text)
        const decoded = requestFromV2(frame, undefined, frame.prompt_shared === undefined ? undefined : known)
        assert.ok(decoded.kind === 'chat')
        assert.deepEqual([...decoded.promptTokenIds!], [...promptTokenIds])
        assert.deepEqual(decoded.body.messages, acceptsShared ? [] : body.messages)
        const isShort = acceptsShared && known.countShared(promptTokenIds) >= MIN_REPORTED_IDS
        assert.equal(frame.prompt_shared !== undefined, isShort)
        assert.equal(frame.prompt_base, isShort ? 'before' : 'r')
      }),
    )
    t.pass('as a difference')
  },
)

t.test('messages are sent beside the ids when an engine needs their images', async (t) => {
  const body = { messages: [{ role: 'user', content: 'x' }] }
  const images = { tokenId: 1, tokens: [1] }
  const request = { kind: 'chat', requestId: 'r', sessionId: 's', stream: true, body, images }
  const tokenRequest = { ...request, promptTokenIds: PromptIds.of(1) } as GenerationRequest
  const frame = JSON.parse(serializeRequest(tokenRequest, 'r', 2, { acceptsShared: true }).toString())
  t.strictSame(frame.messages, body.messages)
  // In chat mode the engine always needs them.
  const { promptTokenIds: _ids, images: _images, ...inChatMode } = tokenRequest
  const chat = serializeRequest(inChatMode as GenerationRequest, 'r', 2, { acceptsShared: true }).toString()
  t.strictSame(JSON.parse(chat).messages, body.messages)
})
