import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { GenerationEvent } from '../../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import {
  GenerateReader,
  type GenerateReaderOptions,
} from '../../../../../../src/proxy/engines/clients/sglang/generate-reader.ts'
import { SseParser } from '../../../../../../src/proxy/engines/clients/wire/sse.ts'
import { findInexactReason } from '../../../../../../src/proxy/session/prompts/exactness.ts'
import { fold } from '../../../../../conformance/engine-client.ts'
import { createGenerateResponse, STREAMS } from '../../../../../helpers/fake-sglang.ts'
import type { Token } from '../../../../../helpers/sampled-words.ts'

const PROMPT = Int32Array.of(7, 8)

function createReader(options: Partial<GenerateReaderOptions> = {}): GenerateReader {
  return new GenerateReader({
    engine: 'http://gpu-1',
    promptTokenIds: new PromptIds(PROMPT),
    wantsLogprobs: false,
    redact: (text) => text.replaceAll('sk-1', '***'),
    ...options,
  })
}

function read(responses: readonly string[], options: Partial<GenerateReaderOptions> = {}): GenerationEvent[] {
  const reader = createReader(options)
  const events: GenerationEvent[] = []
  for (const response of responses) reader.read(response, events)
  events.push(reader.end())
  return events
}

/** Creates a stream event with the complete output so far. */
function createResponse(ids: number[], meta: object = {}): string {
  return JSON.stringify({
    text: 'text',
    output_ids: ids,
    meta_info: {
      finish_reason: { type: 'length', length: ids.length },
      prompt_tokens: 2,
      completion_tokens: ids.length,
      output_token_logprobs: ids.map((id) => [-1, id, null]),
      ...meta,
    },
  })
}

const UNFINISHED = { finish_reason: null }

t.test('a stream has the content of the complete response, for every stream format of the server', (t) => {
  const token: fc.Arbitrary<Token> = fc.record({
    id: fc.nat({ max: 5 }),
    text: fc.string({ unit: 'grapheme' }),
  })
  const fields = fc.record({ return_text_in_logprobs: fc.boolean(), top_logprobs_num: fc.nat({ max: 1 }) })
  /** A merged step is never sent, because the next one arrived before it was read. */
  const steps = fc.array(fc.record({ token, merged: fc.boolean() }), { minLength: 1 })
  fc.assert(
    fc.property(
      steps,
      fc.constantFrom(...STREAMS),
      fields,
      fc.infiniteStream(fc.nat()),
      (steps, streams, fields, cuts) => {
        const body = { input_ids: [...PROMPT], return_logprob: true, ...fields }
        const tokens = steps.map((step) => step.token)
        const stream: object[] = []
        let from = 0
        for (const [index, { merged }] of steps.entries()) {
          const done = index === steps.length - 1
          if (merged && !done) continue
          stream.push(createGenerateResponse(tokens.slice(0, index + 1), { from, done, streams, body }))
          from = index + 1
        }
        const full = createGenerateResponse(tokens, { from: 0, done: true, streams: 'cumulative', body })
        const options = { wantsLogprobs: fields.return_text_in_logprobs }
        const fromStream = fold(read(sendOverWire(stream, cuts), options))
        assert.deepEqual(fromStream, fold(read([JSON.stringify(full)], options)))
        assert.deepEqual(
          fromStream.tokenIds,
          tokens.map(({ id }) => id),
        )
        assert.equal(findInexactReason(fromStream), null)
      },
    ),
  )
  t.pass('with the same ids, logprobs and end')
  t.end()
})

/** Sends the events' JSON over a transport that splits it at any position. */
function sendOverWire(events: object[], cuts: Iterator<number>): string[] {
  const bytes = Buffer.from(events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(''))
  const parser = new SseParser('e')
  const texts: string[] = []
  for (let index = 0; index < bytes.length; ) {
    const length = 1 + (cuts.next().value % 200)
    texts.push(...parser.push(bytes.subarray(index, index + length)).map(String))
    index += length
  }
  return texts
}

t.test('ids lost in transit fail the request, because the remaining ones have no known position', (t) => {
  const lost = [createResponse([1], UNFINISHED), createResponse([4], { completion_tokens: 4 })]
  t.throws(() => read(lost), {
    code: 'engine_failed',
    message: /lost token ids: it reported 1, then 1, of 4/,
  })
  t.throws(() => read([JSON.stringify({ text: 'a', meta_info: {} })]), {
    code: 'engine_failed',
    message: /reported no output_ids/,
  })
  t.end()
})

t.test('a complete response that counts more tokens than it has ids is not exact', (t) => {
  t.match(
    findInexactReason(fold(read([createResponse([1, 2], { completion_tokens: 3 })]))),
    /counted 3 .* 2 ids/,
  )
  t.end()
})

t.test('a logprob is accepted for its own token only', (t) => {
  const getLogprobs = (entries: unknown) =>
    fold(read([createResponse([5, 6], { output_token_logprobs: entries })])).logprobs
  t.same(
    getLogprobs([
      [-1, 5],
      [-2, 6],
    ]),
    [-1, -2],
  )
  t.same(
    getLogprobs([
      [-1, 5],
      [null, 6],
    ]),
    [-1, Number.NaN],
    'null is not a number',
  )
  t.same(
    getLogprobs([
      [-1, 6],
      [-2, 5],
    ]),
    [Number.NaN, Number.NaN],
    'of other tokens',
  )
  t.same(getLogprobs([[-1, 5]]), [], 'too few')
  t.same(getLogprobs(undefined), [], 'none')
  t.end()
})

t.test('an agent that requests logprobs gets entries with text and alternatives', (t) => {
  const json = createResponse([5], {
    output_token_logprobs: [[-1, 5, 'é']],
    output_top_logprobs: [
      [
        [-1, 5, 'é'],
        [-2, 6, 'e'],
      ],
    ],
  })
  const entry = (token: string, logprob: number) => ({ token, logprob, bytes: [...Buffer.from(token)] })
  t.same(fold(read([json], { wantsLogprobs: true })).logprobsContent, [
    { ...entry('é', -1), top_logprobs: [entry('é', -1), entry('e', -2)] },
  ])
  t.same(fold(read([json])).logprobsContent, [])
  t.end()
})

t.test('the end event is parsed', (t) => {
  const getEnd = (meta: object) => fold(read([createResponse([1], meta)])).end
  t.match(getEnd({ finish_reason: { type: 'stop', matched: 151645 } }), {
    finishReason: 'stop',
    stopReason: 151645,
  })
  t.match(getEnd({ finish_reason: { type: 'stop', matched: '###' } }), {
    finishReason: 'stop',
    stopReason: '###',
  })
  t.match(getEnd({}), { finishReason: 'length', stopReason: null })
  t.same(getEnd({ cached_tokens: 1 })?.usage, {
    prompt_tokens: 2,
    completion_tokens: 1,
    total_tokens: 3,
    prompt_tokens_details: { cached_tokens: 1 },
  })
  t.equal(getEnd({ prompt_tokens: null })?.usage, undefined, 'may have no count')
  t.throws(() => read([createResponse([1], UNFINISHED)]), { code: 'engine_lost' }, 'must have a reason')
  t.throws(() => read([]), { code: 'engine_lost' })
  t.end()
})

t.test('weight versions are parsed', (t) => {
  const versions = (...metas: object[]) =>
    read(metas.map((meta, index) => createResponse([1, 2, 3].slice(0, index + 1), meta))).flatMap((event) =>
      event.type === 'delta' ? [] : [event.weightVersion],
    )
  t.same(versions({ weight_version: 'v1' }), ['v1', 'v1'])
  t.same(
    versions({ weight_version: 'v1', ...UNFINISHED }, { weight_version: 'v2' }),
    ['v1', 'v2'],
    'in a stream',
  )
  const spans = [
    { version: 'v1', start: 0, end: 2 },
    { version: 'v2', start: 2, end: 3 },
  ]
  t.same(versions({ weight_version: 'v2', weight_versions: spans }), ['v1', 'v2'], 'of each token')
  t.same(versions({}), [undefined, undefined])
  const starts = (meta: object) => {
    const events: GenerationEvent[] = []
    createReader().read(createResponse([1], meta), events, true)
    return events.flatMap((event) => (event.type === 'start' ? [event.weightVersion] : []))
  }
  t.same(starts({ weight_version: 'v2' }), [undefined], 'of the end only, in a complete response')
  t.same(starts({ weight_version: 'v2', weight_versions: spans }), ['v1'], 'unless there are spans')
  const [, delta] = read([createResponse([1, 2, 3], { weight_versions: spans })], {
    record: { weightVersions: true },
  })
  t.match(delta, { details: { weight_versions: spans } }, 'and recorded if requested')
  t.end()
})

t.test('an abort is not the end of a sample', (t) => {
  const events: GenerationEvent[] = []
  const abort = (fields: object) => createResponse([9], { finish_reason: { type: 'abort', ...fields } })
  const reader = createReader()
  reader.read(createResponse([1], UNFINISHED), events)
  t.throws(() => reader.read(abort({ message: 'key sk-1' }), events), {
    code: 'engine_aborted',
    message: /aborted the request: key \*\*\*$/,
  })
  t.equal(events.length, 2, 'a repeated id is not a new token')
  t.throws(() => reader.read(createResponse([1, 9], { finish_reason: { type: 'abort' } }), events))
  t.match(events.at(-1), { tokenIds: [9] }, 'a new one is')
  const assertFails = (fields: object, code: string, status: number, message: RegExp) =>
    t.throws(() => read([abort(fields)]), { code, status, message })
  assertFails({ message: 'too long', status_code: 400 }, 'engine_rejected', 400, /^too long$/)
  assertFails({ message: 'no memory', status_code: 503 }, 'engine_aborted', 502, /no memory$/)
  assertFails({ message: null }, 'engine_aborted', 502, /no reason given$/)
  t.end()
})

t.test("a stream event that is not part of SGLang's response is skipped", (t) => {
  const others = ['{"warning":"quota"}', '{"error":{}}']
  const events = read([createResponse([1], UNFINISHED), others[0]!, createResponse([1, 2]), ...others])
  t.same(fold(events).tokenIds, [1, 2])
  t.end()
})

t.test('an invalid response is an error', (t) => {
  const assertFails = (json: string, message: RegExp) =>
    t.throws(() => createReader().read(json, []), { code: 'engine_failed', message })
  assertFails('{"error":{"message":"no memory for sk-1"}}', /failed: no memory for \*\*\*$/)
  assertFails('{"object":"error","message":"older"}', /failed: older$/)
  assertFails('<html>', /failed: <html>$/)
  for (const json of ['null', '[]', '{"output_ids":[1]}']) assertFails(json, /failed/)
  for (const json of ['{}', '{"meta_info":null}'])
    t.throws(() => createReader().read(json, [], true), { code: 'engine_failed' })
  t.throws(() => read([createResponse([1], { finish_reason: null }), '{"detail":"of sk-1"}']), {
    code: 'engine_failed',
    message: /failed: of \*\*\*$/,
  })
  t.end()
})
