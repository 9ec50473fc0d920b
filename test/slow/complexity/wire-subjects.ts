/** Readers of bytes and frames: bodies of agents, responses of engines, frames of workers. */

import { ProxyError } from '../../../src/base/errors.ts'
import { CompletionBuilder } from '../../../src/protocol/canonical/completion.ts'
import { parseKeepingNumbers, parseRequest } from '../../../src/protocol/canonical/number-texts.ts'
import { parseEffortRejection } from '../../../src/protocol/canonical/reasoning-effort.ts'
import { RequestReader } from '../../../src/protocol/canonical/request-reader.ts'
import { findElements } from '../../../src/protocol/json/json-list.ts'
import { isNestedTooDeeply, weigh } from '../../../src/protocol/json/json-weight.ts'
import { BytePrefix, DigestPrefix } from '../../../src/protocol/json/verified-prefix.ts'
import { readIds, writeIds } from '../../../src/protocol/token-ids/token-ids-json.ts'
import * as frames from '../../../src/protocol/worker/frames.ts'
import { createChunkFrame, parseChunk } from '../../../src/protocol/worker/response-frames.ts'
import { packTokenIds, unpackTokenIds } from '../../../src/protocol/worker/token-ids.ts'
import { readContextOverflow } from '../../../src/proxy/dialects/common/context-overflow.ts'
import { ToolCallAssembler } from '../../../src/proxy/engines/clients/wire/add-message.ts'
import { CompletionReader } from '../../../src/proxy/engines/clients/wire/completion-reader.ts'
import { parseResponse } from '../../../src/proxy/engines/clients/wire/parse-response.ts'
import { SseParser } from '../../../src/proxy/engines/clients/wire/sse.ts'
import { toTurnId } from '../../../src/proxy/http/trainer/sessions/named-turns.ts'
import { parseResponseV1 } from '../../../src/proxy/relay/responses-v1.ts'
import type { WorkFactory } from './measure.ts'
import {
  createDeepValues,
  createUnitCases,
  createWideObject,
  repeat,
  type Subject,
  times,
  UNITS,
} from './subject.ts'

const toJson = (value: unknown) => Buffer.from(JSON.stringify(value))

/** JSON documents of about `n` bytes, each adversarial in a different way. */
function createJsonCases(work: (json: Buffer) => unknown): Record<string, WorkFactory> {
  const fromJson = (make: (n: number) => Buffer): WorkFactory => {
    return (n) => {
      const json = make(n)
      return () => work(Buffer.from(json))
    }
  }
  return {
    'a string of escapes': fromJson((n) => toJson({ a: repeat(UNITS.escapes!, n / 3) })),
    'empty objects': fromJson((n) => toJson({ a: times(n / 3, () => ({})) })),
    'deep values': fromJson((n) => toJson({ a: createDeepValues(n / 4) })),
    'a wide object': fromJson((n) => toJson(createWideObject(n / 4))),
    numbers: fromJson((n) => toJson({ a: times(n / 6, (index) => index + 0.5) })),
    'messages of one character': fromJson((n) =>
      toJson({
        messages: times(n / 40, (index) => ({ role: index % 2 ? 'assistant' : 'user', content: 'x' })),
      }),
    ),
  }
}

function parseEvents(bytes: Buffer, chunk: number): void {
  const parser = new SseParser('engine')
  for (let index = 0; index < bytes.length; index += chunk) parser.push(bytes.subarray(index, index + chunk))
}

const READER_OPTIONS = {
  engine: 'http://gpu-1',
  wantsLogprobs: true,
  wantsIdsAsTokens: false,
  sentPromptTokenIds: undefined,
  redact: (text: string) => text,
}

export const WIRE_SUBJECTS: readonly Subject[] = [
  {
    name: 'server-sent events',
    covers: ['src/proxy/engines/clients/wire/sse.ts', 'src/proxy/engines/clients/wire/join-chunks.ts'],
    cases: {
      ...createUnitCases((text) => () => parseEvents(Buffer.from(text), 7), {
        newlines: '\n',
        'carriage returns': '\r',
        'empty events': 'data:\n\n',
        'an event of many lines': 'data: x\n',
        comments: ': ping\n\n',
      }),
      'one long line in many reads': (n) => {
        const bytes = Buffer.from(`data: ${repeat('x', n)}\n\n`)
        return () => parseEvents(bytes, 100)
      },
    },
  },
  {
    name: 'responses of engines as JSON',
    covers: ['src/proxy/engines/clients/wire/parse-response.ts'],
    cases: {
      ...createJsonCases((json) => parseResponse(json)),
      'ids of a prompt': (n) => {
        const json = toJson({ id: 1, prompt_token_ids: times(n, (index) => index) })
        return () => parseResponse(json)
      },
      'keys in strings': (n) => {
        const json = toJson({ a: repeat('"prompt_token_ids":[', n) })
        return () => parseResponse(json)
      },
    },
  },
  {
    name: 'responses of engines',
    covers: [
      'src/proxy/engines/clients/wire/completion-reader.ts',
      'src/proxy/engines/clients/wire/add-message.ts',
    ],
    n: 500,
    cases: {
      'chunks without anything': (n) => {
        const chunk = JSON.stringify({ choices: [{ index: 0, delta: {} }] })
        return () => {
          const reader = new CompletionReader(READER_OPTIONS)
          for (let index = 0; index < n; index += 1) reader.read(chunk, [])
        }
      },
      'a tool call in every chunk': (n) => {
        const chunks = times(n, (index) =>
          JSON.stringify({
            choices: [
              {
                index: 0,
                delta: {
                  tool_calls: [{ index: index, id: `c${index}`, function: { name: 'f', arguments: '{' } }],
                },
              },
            ],
          }),
        )
        return () => {
          const reader = new CompletionReader(READER_OPTIONS)
          for (const chunk of chunks) reader.read(chunk, [])
        }
      },
      'tokens of a complete response': (n) => {
        const content = times(n, () => ({ token: 'x', logprob: -1, bytes: [120], top_logprobs: [] }))
        const choice = {
          index: 0,
          message: { role: 'assistant', content: repeat('x', n) },
          token_ids: times(n, (index) => index),
          logprobs: { content },
          finish_reason: 'stop',
        }
        const json = toJson({ choices: [choice] })
        return () => new CompletionReader(READER_OPTIONS).read(Buffer.from(json), [])
      },
    },
  },
  {
    name: 'frames',
    covers: ['src/protocol/worker/frames.ts', 'src/protocol/worker/protocol.ts'],
    cases: {
      ...createJsonCases((json) => frames.parseFrame(json, false)),
      NaN: (n) => {
        const json = Buffer.from(`{"type": "x", "a": [${repeat('NaN, ', n)}1]}`)
        return () => frames.parseFrame(json, false)
      },
      'NaN in a string of escapes': (n) => {
        const json = Buffer.from(`{"type": "x", "b": NaN, "a": "${repeat('\\"NaN', n)}"}`)
        return () => frames.parseFrame(json, false)
      },
      'deltas to check': (n) => {
        const deltas = times(n / 20, () => ({ content: 'x' }))
        const frame = { type: 'completion_chunk', request_id: 'r', seq: 1, deltas }
        return () => frames.chunk.isValid(frame)
      },
    },
  },
  {
    name: 'events of a frame',
    covers: [
      'src/protocol/worker/response-frames.ts',
      'src/proxy/relay/responses-v1.ts',
      'src/protocol/worker/token-ids.ts',
    ],
    cases: {
      deltas: (n) => {
        const deltas = times(n / 20, () => ({ content: 'x' }))
        return () => parseChunk({ type: 'completion_chunk', request_id: 'r', seq: 1, deltas }, 'w')
      },
      'deltas that are written': (n) => {
        const events = times(n / 20, () => ({
          type: 'delta' as const,
          content: 'x',
          tokenIds: [1],
          logprobs: [-1],
        }))
        return () => createChunkFrame('r', events)?.(1)
      },
      'a version-1 response': (n) => {
        const ids = times(n, (index) => index)
        const response = {
          type: 'completion_response' as const,
          request_id: 'r',
          token_ids: ids,
          log_probs: ids.map(() => -1),
          completion_text: repeat('x', n),
          content_text: repeat('x', n),
          tool_calls: null,
          finish_reason: 'stop' as const,
          error: null,
        }
        return () => parseResponseV1(response, 'w')
      },
      'packed ids': (n) => {
        const ids = Int32Array.from({ length: n }, (_, index) => index * 7)
        return () => unpackTokenIds(packTokenIds(ids))
      },
    },
  },
  {
    name: 'chunks of tool calls',
    covers: ['src/proxy/engines/clients/wire/add-message.ts'],
    cases: {
      'a name in chunks': (n) => () => {
        const assembler = new ToolCallAssembler()
        times(n, () => assembler.assign({ index: 0, id: 'c', function: { name: 'f' } }))
      },
      'an id in each chunk': (n) => () => {
        const assembler = new ToolCallAssembler()
        times(n, (index) => assembler.assign({ index: 0, id: `c${index}`, function: { arguments: '{' } }))
      },
      'a tool call in each chunk': (n) => () => {
        const assembler = new ToolCallAssembler()
        times(n, () => assembler.assign({ index: 0, function: { name: 'f', arguments: '{}' } }))
      },
    },
  },
  {
    name: 'turn names',
    covers: ['src/proxy/http/trainer/sessions/named-turns.ts'],
    cases: createUnitCases((text) => () => toTurnId(text), {
      digits: '0',
      dashes: '-',
      prefixes: 'chatcmpl-',
    }),
  },
  {
    name: 'bodies of requests',
    covers: [
      'src/proxy/http/transport/json-body.ts',
      'src/protocol/canonical/{request-reader,part-cache}.ts',
      'src/protocol/json/json-weight.ts',
      'src/protocol/json/json-list.ts',
      'src/protocol/canonical/number-texts.ts',
    ],
    cases: {
      ...createJsonCases((json) => {
        const { value } = new RequestReader().read(json)
        return isNestedTooDeeply(value) || weigh(json)
      }),
      'a conversation that has been read before': (n) => {
        const messages = times(n / 40, () => ({ role: 'user', content: 'x' }))
        const [before, after] = [messages.slice(1), messages].map((some) => toJson({ messages: some }))
        const reader = new RequestReader()
        reader.read(before!)
        return () => reader.read(after!)
      },
      'tools with numbers': (n) => {
        const tools = times(n / 60, (index) => ({
          type: 'function',
          function: { name: `f${index}`, parameters: { a: 1.5 } },
        }))
        const text = JSON.stringify({ tools, messages: [] })
        return () => [parseRequest(text), parseKeepingNumbers(text)]
      },
      'a list that does not end': (n) => {
        const json = Buffer.from(`[${repeat('{}, ', n)}`)
        return () => findElements(json, 1, false)
      },
    },
  },
  {
    name: 'bytes that have been read before',
    covers: ['src/protocol/json/verified-prefix.ts', 'src/protocol/json/secret-tag.ts'],
    cases: {
      unchanged: (n) => {
        const bytes = Buffer.alloc(16 * n, 'x')
        const known = DigestPrefix.of(bytes)
        return () => known.extendTo(bytes, known.measureShared(bytes))
      },
      'with a late difference': (n) => {
        const [bytes, others] = [Buffer.alloc(16 * n, 'x'), Buffer.alloc(16 * n, 'x')]
        others[15 * n] = 0
        const both = [BytePrefix.of(bytes), DigestPrefix.of(bytes)]
        return () => both.map((known) => known.extendTo(others, known.measureShared(others)))
      },
    },
  },
  {
    name: 'the error of an engine that rejects an effort',
    covers: ['src/protocol/canonical/reasoning-effort.ts'],
    cases: createUnitCases((text) => () => parseEffortRejection(text, 'high'), {
      ...UNITS,
      names: '"reasoning_effort"',
      'names before spaces': '"reasoning_effort"   ',
      'efforts without an end': '"reasoning_effort":"high',
      efforts: 'effort low ',
    }),
  },
  {
    name: 'the error of an engine whose context overflows',
    covers: ['src/proxy/dialects/common/context-overflow.ts'],
    cases: createUnitCases(
      (text) => {
        const message = `maximum context length is 1 ${text}`
        const error = new ProxyError('engine_rejected', message)
        return () => readContextOverflow(error)
      },
      { ...UNITS, digits: '1', numbers: '1 in the messages ' },
    ),
  },
  {
    name: 'a completion from its deltas',
    covers: ['src/protocol/canonical/completion.ts'],
    cases: {
      'unknown fields': (n) => {
        const deltas = times(n / 20, (index) => ({ type: 'delta' as const, extra: { [`field${index}`]: 1 } }))
        return () => new CompletionBuilder().write(deltas)
      },
    },
  },
  {
    name: 'token ids as JSON',
    covers: ['src/protocol/token-ids/token-ids-json.ts'],
    cases: {
      ids: (n) => {
        const bytes = writeIds(Int32Array.from({ length: n }, (_, index) => index))
        return () => readIds(bytes, 0, bytes.length)
      },
    },
  },
]
