/** Processing of a parsed request: lowering, matching, lines. */

import { MessageTree } from '../../../src/protocol/canonical/conversation.ts'
import { getImageUrls, splitDataUrl } from '../../../src/protocol/canonical/images.ts'
import { lowerChatRequest } from '../../../src/proxy/dialects/chat/request.ts'
import { unseal } from '../../../src/proxy/dialects/common/sealed-reasoning.ts'
import { ToolCallOrder } from '../../../src/proxy/dialects/common/tool-call-order.ts'
import { lowerCompletionRequest } from '../../../src/proxy/dialects/completions/request.ts'
import { lowerGeminiRequest } from '../../../src/proxy/dialects/gemini/request.ts'
import { EVENT_FRAME, GeminiStreamWriter } from '../../../src/proxy/dialects/gemini/response.ts'
import { lowerMessagesRequest } from '../../../src/proxy/dialects/messages/request.ts'
import { lowerResponsesRequest } from '../../../src/proxy/dialects/responses/request.ts'
import { checkResponsesRequest } from '../../../src/proxy/dialects/responses/schema.ts'
import { toCanonicalJson } from '../../../src/proxy/session/matching/canonical-json.ts'
import { computeMessageKey } from '../../../src/proxy/session/matching/message-key.ts'
import { PrefixIndex } from '../../../src/proxy/session/matching/prefix-index.ts'
import { readArguments } from '../../../src/proxy/session/matching/tool-arguments.ts'
import { ToolCallIds } from '../../../src/proxy/session/matching/tool-call-ids.ts'
import { AgentRoleFinder } from '../../../src/proxy/session/roles/agent-role-finder.ts'
import { findRepeatedByLast, SessionAttempts } from '../../../src/proxy/session/trajectories/retries.ts'
import { createConversation, lastOfTexts } from '../../helpers/messages.ts'
import { type Case, deepValues, ofUnits, repeat, type Subject, times, UNITS, wideObject } from './subject.ts'

type Message = Record<string, unknown>

const call = (index: number, args = '{}') => ({
  id: `c${index}`,
  type: 'function',
  function: { name: 'f', arguments: args },
})
/** A conversation that ends with a user message. */
const createTalk = (n: number): Message[] =>
  times(n | 1, (index) => ({ role: index % 2 === 1 ? 'assistant' : 'user', content: `m${index}` }))
/** One message with n calls, and the result of each. */
const results = (n: number): Message[] => [
  { role: 'user', content: 'go' },
  { role: 'assistant', content: null, tool_calls: times(n, (index) => call(index)) },
  ...times(n, (index) => ({ role: 'tool', tool_call_id: `c${index}`, content: 'x' })),
]
const tools = (n: number) =>
  times(n, (index) => ({ type: 'function', function: { name: `f${index}`, parameters: {} } }))

/** Makes each input again, because results are attached to its messages. */
function fresh<T>(make: (n: number) => T, work: (value: T) => unknown): Case {
  return (n) => {
    const value = structuredClone(make(n))
    return () => work(value)
  }
}

const GO = [{ role: 'user', parts: [{ text: 'go' }] }]
const GEMINI_CALL = { model: 'm', stream: false }
const GEMINI_ANSWER = { logprobs: false, tokenIds: false, reasoning: true, streamUsage: true }

const EMPTY = { content: null, reasoning: null, toolCalls: [] }

export const REQUESTS: readonly Subject[] = [
  {
    name: 'Chat Completions',
    covers: [
      'src/proxy/dialects/chat/*',
      'src/proxy/dialects/common/check.ts',
      'src/proxy/dialects/common/choices.ts',
      'src/proxy/dialects/common/dialect-request.ts',
    ],
    n: 500,
    cases: {
      messages: fresh(createTalk, (messages) => lowerChatRequest({ messages })),
      'results of calls': fresh(results, (messages) => lowerChatRequest({ messages })),
      parts: fresh(
        (n) => [{ role: 'user', content: times(n, () => ({ type: 'text', text: '' })) }],
        (messages) => lowerChatRequest({ messages }),
      ),
      tools: fresh(tools, (some) => lowerChatRequest({ messages: createTalk(1), tools: some })),
      'unknown fields': fresh(
        (n) => wideObject(4 * n),
        (more) => lowerChatRequest({ ...more, messages: createTalk(1) }),
      ),
    },
  },
  {
    name: 'Completions',
    covers: ['src/proxy/dialects/completions/*'],
    cases: {
      ids: fresh(
        (n) => times(n, (index) => index),
        (prompt) => lowerCompletionRequest({ prompt }),
      ),
      stops: fresh(
        (n) => times(n, (index) => `s${index}`),
        (stop) => lowerCompletionRequest({ prompt: 'x', stop }),
      ),
    },
  },
  {
    name: 'Messages',
    covers: [
      'src/proxy/dialects/messages/*',
      'src/proxy/dialects/common/volatile.ts',
      'src/proxy/dialects/common/json-text.ts',
    ],
    n: 500,
    cases: {
      messages: fresh(createTalk, (messages) =>
        lowerMessagesRequest({ model: 'm', max_tokens: 1, messages }),
      ),
      'results of calls': fresh(
        (n) => [
          { role: 'user', content: 'go' },
          {
            role: 'assistant',
            content: times(n, (index) => ({ type: 'tool_use', id: `c${index}`, name: 'f', input: {} })),
          },
          {
            role: 'user',
            content: times(n, (index) => ({ type: 'tool_result', tool_use_id: `c${index}`, content: 'x' })),
          },
        ],
        (messages) => lowerMessagesRequest({ model: 'm', max_tokens: 1, messages }),
      ),
      tools: fresh(
        (n) => times(n, (index) => ({ name: `f${index}`, input_schema: { type: 'object' } })),
        (some) => lowerMessagesRequest({ model: 'm', max_tokens: 1, messages: createTalk(1), tools: some }),
      ),
      'tools that are found again and again': fresh(
        (n) => ({
          tools: times(n, (index) => ({
            name: `f${index}`,
            description: 'x'.repeat(n),
            input_schema: {},
            defer_loading: true,
          })).slice(0, 20),
          messages: times(n, (index) => ({
            role: 'user',
            content: [
              {
                type: 'tool_result',
                tool_use_id: `c${index}`,
                content: [{ type: 'tool_reference', tool_name: `f${index % 20}` }],
              },
            ],
          })).flatMap((found) => [{ role: 'assistant', content: 'a' }, found]),
        }),
        (body) => lowerMessagesRequest({ model: 'm', max_tokens: 1, ...body }),
      ),
      'a system of many parts': fresh(
        (n) => times(n, () => ({ type: 'text', text: 'x-anthropic-billing-header: ' })),
        (system) => lowerMessagesRequest({ model: 'm', max_tokens: 1, system, messages: createTalk(1) }),
      ),
    },
  },
  {
    name: 'Gemini',
    covers: [
      'src/proxy/dialects/gemini/*',
      'src/proxy/dialects/common/{tool-input,messages,other-fields}.ts',
    ],
    n: 500,
    cases: {
      contents: fresh(
        (n) =>
          times(n + 1 - (n % 2), (index) => ({ role: index % 2 ? 'model' : 'user', parts: [{ text: 'x' }] })),
        (contents) => lowerGeminiRequest({ contents }, GEMINI_CALL),
      ),
      'results without ids': fresh(
        (n) => [
          { role: 'user', parts: [{ text: 'go' }] },
          { role: 'model', parts: times(n, () => ({ functionCall: { name: 'f', args: {} } })) },
          {
            role: 'user',
            parts: times(n, () => ({ functionResponse: { name: 'f', response: { output: 'x' } } })),
          },
        ],
        (contents) => lowerGeminiRequest({ contents }, GEMINI_CALL),
      ),
      tools: fresh(
        (n) => [
          {
            functionDeclarations: times(n, (index) => ({
              name: `f${index}`,
              parameters: { type: 'OBJECT' },
            })),
          },
        ],
        (tools) => lowerGeminiRequest({ contents: GO, tools }, GEMINI_CALL),
      ),
      'a wide schema': fresh(
        (n) => Object.fromEntries(times(n, (index) => [`p${index}`, { type: 'STRING', nullable: true }])),
        (properties) =>
          lowerGeminiRequest(
            {
              contents: GO,
              tools: [{ functionDeclarations: [{ name: 'f', parameters: { type: 'OBJECT', properties } }] }],
            },
            GEMINI_CALL,
          ),
      ),
      'pieces of one call': (n) => () => {
        const identity = { turnId: 'a', createdS: 1, model: 'm' }
        const writer = new GeminiStreamWriter(identity, GEMINI_ANSWER, EVENT_FRAME)
        const chunk = { index: 0, id: 'c', function: { name: 'f', arguments: '"' } }
        times(n, () => writer.write([{ type: 'delta', toolCalls: [chunk] }]))
      },
    },
  },
  {
    name: 'interleaved tool calls',
    covers: ['src/proxy/dialects/common/tool-call-order.ts'],
    cases: {
      'pieces of the first while the second waits': (n) => () => {
        const order = new ToolCallOrder()
        order.add({ index: 0, function: { arguments: '{"a": "' } })
        order.add({ index: 1, function: { arguments: '{' } })
        times(n, () => order.add({ index: 0, function: { arguments: 'x' } }))
      },
      'pieces of the second while the first is open': (n) => () => {
        const order = new ToolCallOrder()
        order.add({ index: 0, function: { arguments: '{' } })
        times(n, () => order.add({ index: 1, function: { arguments: 'x' } }))
        order.end()
      },
      'tool calls that all wait': (n) => () => {
        const order = new ToolCallOrder()
        times(n, (index) => order.add({ index, function: { arguments: '{' } }))
        times(n, (index) => order.add({ index, function: { arguments: '}' } }))
      },
    },
  },
  {
    name: 'Responses',
    covers: ['src/proxy/dialects/responses/*', 'src/proxy/dialects/common/sealed-reasoning.ts'],
    n: 500,
    cases: {
      messages: fresh(createTalk, (input) => lowerItems(input)),
      'results of calls': fresh(
        (n) => [
          ...times(n, (index) => ({
            type: 'function_call',
            call_id: `c${index}`,
            name: 'f',
            arguments: '{}',
          })),
          ...times(n, (index) => ({ type: 'function_call_output', call_id: `c${index}`, output: 'x' })),
        ],
        lowerItems,
      ),
      'parts without anything': fresh(
        (n) => [{ role: 'user', content: times(n, () => ({ type: 'input_text', text: '' })) }],
        lowerItems,
      ),
      ...ofUnits((text) => () => unseal(text), { escapes: UNITS.escapes!, spaces: UNITS.spaces! }),
    },
  },
  {
    name: 'URLs of images',
    covers: ['src/protocol/canonical/images.ts'],
    cases: {
      parameters: (n) => {
        const url = `data:a/b${repeat(';a=b', n)}`
        return () => splitDataUrl(url)
      },
      'a type that does not end': (n) => {
        const url = `data:${repeat('a', n)}`
        return () => splitDataUrl(url)
      },
      parts: fresh(
        (n) => times(n / 10, () => ({ type: 'image_url', image_url: { url: 'data:,' } })),
        (content) => getImageUrls([{ content: content as never }]),
      ),
    },
  },
  {
    name: 'keys of messages',
    covers: [
      'src/proxy/session/matching/message-key.ts',
      'src/proxy/session/matching/canonical-json.ts',
      'src/proxy/session/matching/tool-arguments.ts',
    ],
    cases: {
      'deep values': fresh(deepValues, toCanonicalJson),
      'a wide object': fresh((n) => wideObject(n / 4), toCanonicalJson),
      'calls of a message': fresh(
        (n) => ({
          role: 'assistant',
          content: null,
          tool_calls: times(n / 20, (index) => call(index, '{"a": 1}')),
        }),
        (message) => computeMessageKey(message as never),
      ),
      'parts of a message': fresh(
        (n) => ({ role: 'user', content: times(n / 10, () => ({ type: 'text', text: '' })) }),
        (message) => computeMessageKey(message as never),
      ),
      ...ofUnits((text) => () => readArguments(`{"a": ${JSON.stringify(text)}}`)),
      ...ofUnits((text) => () => readArguments(text), {
        'open objects': UNITS['open objects']!,
        spaces: ' ',
      }),
    },
  },
  {
    name: 'matching',
    covers: [
      'src/proxy/session/matching/prefix-index.ts',
      'src/proxy/session/matching/tool-call-ids.ts',
      'src/proxy/session/matching/conversation.ts',
      'src/proxy/session/matching/message-tree.ts',
      'src/proxy/session/matching/rebuild-index.ts',
      'src/protocol/canonical/conversation.ts',
      'src/base/side-table.ts',
    ],
    n: 300,
    cases: {
      'a long conversation': fresh(createTalk, (messages) =>
        new PrefixIndex().match(createConversation(messages)),
      ),
      'results of calls': fresh(results, (messages) => new PrefixIndex().match(createConversation(messages))),
      'calls of one message': fresh(
        (n) => {
          const ids = new ToolCallIds()
          const calls = times(n, () => ({
            id: ids.create(undefined),
            function: { name: 'f', arguments: '{}' },
          }))
          return [...createTalk(1), { role: 'assistant', tool_calls: calls }] as Message[]
        },
        (messages) => new PrefixIndex().match(createConversation(messages)),
      ),
      'samples of one request': (n) => () => {
        const tree = new MessageTree()
        const index = new PrefixIndex<number>()
        for (let i = 0; i < n; i += 1) {
          const matched = index.match(createConversation(createTalk(1), null, tree))
          index.add(matched, { ...EMPTY, content: 'always the same' }, i)
        }
        const echo = [
          ...createTalk(1),
          { role: 'assistant', content: 'always the same ' },
          { role: 'user', content: 'on' },
        ]
        return index.match(createConversation(echo, null, tree))
      },
      'branches of one request': (n) => () => {
        const tree = new MessageTree()
        const index = new PrefixIndex<number>()
        for (let i = 0; i < n; i += 1) {
          const messages = [...createTalk(2), { role: 'user', content: `branch ${i}` }]
          index.add(index.match(createConversation(messages, null, tree)), { ...EMPTY, content: `${i}` }, i)
        }
      },
    },
  },
  {
    name: 'lines',
    covers: ['src/proxy/session/roles/*', 'src/proxy/session/roles/rules/*'],
    n: 300,
    cases: {
      'tool calls that all open again': (n) => {
        const turns = times(n, (index) => getTurn([{ role: 'user', content: `task ${index}` }]))
        return () => lined(turns)
      },
      'calls that are all the same': (n) => {
        const turns = times(n, () => getTurn(createTalk(3)))
        return () => lined(turns)
      },
      'a call of many messages': (n) => {
        const turn = getTurn(createTalk(n))
        return () => lined([turn])
      },
    },
  },
  {
    name: 'attempts of a request',
    covers: ['src/proxy/session/trajectories/retries.ts'],
    n: 200,
    cases: {
      'retries without end': (n) => {
        const turn = {
          ...getTurn([]),
          index: 0,
          startedAtMs: 0,
          endedAtMs: 0,
          params: '{}',
          promptPieces: [],
        }
        const marked = times(n, (index) => ({ ...turn, turnId: `${index}`, retryCount: index === 0 ? 0 : 1 }))
        return () => {
          const retries = new SessionAttempts()
          for (const each of marked) findRepeatedByLast(retries.add(each), () => false)
          retries.findSuperseded(() => false)
        }
      },
    },
  },
]

function lowerItems(input: unknown): unknown {
  const request = checkResponsesRequest({ model: 'm', input })
  return lowerResponsesRequest(request, [], request.input as never)
}

function getTurn(messages: readonly Message[]) {
  const lastMessage = lastOfTexts(messages.map((message) => JSON.stringify(message)))
  return { status: 'completed' as const, lastMessage, tools: null, annotations: '{}' }
}

function lined(turns: readonly ReturnType<typeof getTurn>[]): void {
  const finder = new AgentRoleFinder()
  for (const turn of turns) finder.add(turn)
}
