/** Processing of a parsed request: lowering, matching, agent roles. */

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
import { addMessageTexts, createConversation } from '../../helpers/messages.ts'
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

type Message = Record<string, unknown>

const createToolCall = (index: number, args = '{}') => ({
  id: `c${index}`,
  type: 'function',
  function: { name: 'f', arguments: args },
})
/** A conversation that ends with a user message. */
const createMessages = (n: number): Message[] =>
  times(n | 1, (index) => ({ role: index % 2 === 1 ? 'assistant' : 'user', content: `m${index}` }))
/** One message with n tool calls, and the result of each. */
const createToolResults = (n: number): Message[] => [
  { role: 'user', content: 'go' },
  { role: 'assistant', content: null, tool_calls: times(n, (index) => createToolCall(index)) },
  ...times(n, (index) => ({ role: 'tool', tool_call_id: `c${index}`, content: 'x' })),
]
const createTools = (n: number) =>
  times(n, (index) => ({ type: 'function', function: { name: `f${index}`, parameters: {} } }))

/** Makes each input again, because results are attached to its messages. */
function withFreshInput<T>(make: (n: number) => T, work: (value: T) => unknown): WorkFactory {
  return (n) => {
    const value = structuredClone(make(n))
    return () => work(value)
  }
}

const GO = [{ role: 'user', parts: [{ text: 'go' }] }]
const GEMINI_REQUEST = { model: 'm', stream: false }
const GEMINI_RESPONSE_OPTIONS = { logprobs: false, tokenIds: false, reasoning: true, streamUsage: true }

const EMPTY_COMPLETION = { content: null, reasoning: null, toolCalls: [] }

export const REQUEST_SUBJECTS: readonly Subject[] = [
  {
    name: 'Chat Completions',
    covers: [
      'src/proxy/dialects/chat/*',
      'src/proxy/dialects/common/check.ts',
      'src/protocol/schema/schema-errors.ts',
      'src/proxy/dialects/common/choices.ts',
      'src/proxy/dialects/common/dialect-request.ts',
    ],
    n: 500,
    cases: {
      messages: withFreshInput(createMessages, (messages) => lowerChatRequest({ messages })),
      'tool results': withFreshInput(createToolResults, (messages) => lowerChatRequest({ messages })),
      parts: withFreshInput(
        (n) => [{ role: 'user', content: times(n, () => ({ type: 'text', text: '' })) }],
        (messages) => lowerChatRequest({ messages }),
      ),
      tools: withFreshInput(createTools, (some) =>
        lowerChatRequest({ messages: createMessages(1), tools: some }),
      ),
      'unknown fields': withFreshInput(
        (n) => createWideObject(4 * n),
        (more) => lowerChatRequest({ ...more, messages: createMessages(1) }),
      ),
    },
  },
  {
    name: 'Completions',
    covers: ['src/proxy/dialects/completions/*'],
    cases: {
      ids: withFreshInput(
        (n) => times(n, (index) => index),
        (prompt) => lowerCompletionRequest({ prompt }),
      ),
      stops: withFreshInput(
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
      messages: withFreshInput(createMessages, (messages) =>
        lowerMessagesRequest({ model: 'm', max_tokens: 1, messages }),
      ),
      'tool results': withFreshInput(
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
      tools: withFreshInput(
        (n) => times(n, (index) => ({ name: `f${index}`, input_schema: { type: 'object' } })),
        (some) =>
          lowerMessagesRequest({ model: 'm', max_tokens: 1, messages: createMessages(1), tools: some }),
      ),
      'tools that are referenced repeatedly': withFreshInput(
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
      'a system of many parts': withFreshInput(
        (n) => times(n, () => ({ type: 'text', text: 'x-anthropic-billing-header: ' })),
        (system) => lowerMessagesRequest({ model: 'm', max_tokens: 1, system, messages: createMessages(1) }),
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
      contents: withFreshInput(
        (n) =>
          times(n + 1 - (n % 2), (index) => ({ role: index % 2 ? 'model' : 'user', parts: [{ text: 'x' }] })),
        (contents) => lowerGeminiRequest({ contents }, GEMINI_REQUEST),
      ),
      'results without ids': withFreshInput(
        (n) => [
          { role: 'user', parts: [{ text: 'go' }] },
          { role: 'model', parts: times(n, () => ({ functionCall: { name: 'f', args: {} } })) },
          {
            role: 'user',
            parts: times(n, () => ({ functionResponse: { name: 'f', response: { output: 'x' } } })),
          },
        ],
        (contents) => lowerGeminiRequest({ contents }, GEMINI_REQUEST),
      ),
      tools: withFreshInput(
        (n) => [
          {
            functionDeclarations: times(n, (index) => ({
              name: `f${index}`,
              parameters: { type: 'OBJECT' },
            })),
          },
        ],
        (tools) => lowerGeminiRequest({ contents: GO, tools }, GEMINI_REQUEST),
      ),
      'a wide schema': withFreshInput(
        (n) => Object.fromEntries(times(n, (index) => [`p${index}`, { type: 'STRING', nullable: true }])),
        (properties) =>
          lowerGeminiRequest(
            {
              contents: GO,
              tools: [{ functionDeclarations: [{ name: 'f', parameters: { type: 'OBJECT', properties } }] }],
            },
            GEMINI_REQUEST,
          ),
      ),
      'chunks of one tool call': (n) => () => {
        const identity = { turnId: 'a', createdS: 1, model: 'm' }
        const writer = new GeminiStreamWriter(identity, GEMINI_RESPONSE_OPTIONS, EVENT_FRAME)
        const chunk = { index: 0, id: 'c', function: { name: 'f', arguments: '"' } }
        times(n, () => writer.write([{ type: 'delta', toolCalls: [chunk] }]))
      },
    },
  },
  {
    name: 'interleaved tool calls',
    covers: ['src/proxy/dialects/common/tool-call-order.ts'],
    cases: {
      'chunks of the first while the second waits': (n) => () => {
        const order = new ToolCallOrder()
        order.add({ index: 0, function: { arguments: '{"a": "' } })
        order.add({ index: 1, function: { arguments: '{' } })
        times(n, () => order.add({ index: 0, function: { arguments: 'x' } }))
      },
      'chunks of the second while the first is open': (n) => () => {
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
      messages: withFreshInput(createMessages, (input) => lowerItems(input)),
      'tool results': withFreshInput(
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
      'parts without anything': withFreshInput(
        (n) => [{ role: 'user', content: times(n, () => ({ type: 'input_text', text: '' })) }],
        lowerItems,
      ),
      ...createUnitCases((text) => () => unseal(text), { escapes: UNITS.escapes!, spaces: UNITS.spaces! }),
    },
  },
  {
    name: 'image URLs',
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
      parts: withFreshInput(
        (n) => times(n / 10, () => ({ type: 'image_url', image_url: { url: 'data:,' } })),
        (content) => getImageUrls([{ content: content as never }]),
      ),
    },
  },
  {
    name: 'message keys',
    covers: [
      'src/proxy/session/matching/message-key.ts',
      'src/proxy/session/matching/canonical-json.ts',
      'src/proxy/session/matching/tool-arguments.ts',
    ],
    cases: {
      'deep values': withFreshInput(createDeepValues, toCanonicalJson),
      'a wide object': withFreshInput((n) => createWideObject(n / 4), toCanonicalJson),
      'tool calls of a message': withFreshInput(
        (n) => ({
          role: 'assistant',
          content: null,
          tool_calls: times(n / 20, (index) => createToolCall(index, '{"a": 1}')),
        }),
        (message) => computeMessageKey(message as never),
      ),
      'parts of a message': withFreshInput(
        (n) => ({ role: 'user', content: times(n / 10, () => ({ type: 'text', text: '' })) }),
        (message) => computeMessageKey(message as never),
      ),
      ...createUnitCases((text) => () => readArguments(`{"a": ${JSON.stringify(text)}}`)),
      ...createUnitCases((text) => () => readArguments(text), {
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
      'a long conversation': withFreshInput(createMessages, (messages) =>
        new PrefixIndex().match(createConversation(messages)),
      ),
      'tool results': withFreshInput(createToolResults, (messages) =>
        new PrefixIndex().match(createConversation(messages)),
      ),
      'tool calls of one message': withFreshInput(
        (n) => {
          const ids = new ToolCallIds()
          const toolCalls = times(n, () => ({
            id: ids.create(undefined),
            function: { name: 'f', arguments: '{}' },
          }))
          return [...createMessages(1), { role: 'assistant', tool_calls: toolCalls }] as Message[]
        },
        (messages) => new PrefixIndex().match(createConversation(messages)),
      ),
      'samples of one request': (n) => () => {
        const tree = new MessageTree()
        const index = new PrefixIndex<number>()
        for (let i = 0; i < n; i += 1) {
          const matched = index.match(createConversation(createMessages(1), null, tree))
          index.add(matched, { ...EMPTY_COMPLETION, content: 'always the same' }, i)
        }
        const echo = [
          ...createMessages(1),
          { role: 'assistant', content: 'always the same ' },
          { role: 'user', content: 'on' },
        ]
        return index.match(createConversation(echo, null, tree))
      },
      'branches of one request': (n) => () => {
        const tree = new MessageTree()
        const index = new PrefixIndex<number>()
        for (let i = 0; i < n; i += 1) {
          const messages = [...createMessages(2), { role: 'user', content: `branch ${i}` }]
          index.add(
            index.match(createConversation(messages, null, tree)),
            { ...EMPTY_COMPLETION, content: `${i}` },
            i,
          )
        }
      },
    },
  },
  {
    name: 'agent roles',
    covers: ['src/proxy/session/roles/*', 'src/proxy/session/roles/rules/*'],
    n: 300,
    cases: {
      'requests that each start a conversation': (n) => {
        const turns = times(n, (index) => createTurn([{ role: 'user', content: `task ${index}` }]))
        return () => findRoles(turns)
      },
      'equal requests': (n) => {
        const turns = times(n, () => createTurn(createMessages(3)))
        return () => findRoles(turns)
      },
      'a request of many messages': (n) => {
        const turn = createTurn(createMessages(n))
        return () => findRoles([turn])
      },
    },
  },
  {
    name: 'attempts of a request',
    covers: ['src/proxy/session/trajectories/retries.ts'],
    n: 200,
    cases: {
      'endless retries': (n) => {
        const turn = {
          ...createTurn([]),
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

function createTurn(messages: readonly Message[]) {
  const lastMessage = addMessageTexts(messages.map((message) => JSON.stringify(message)))
  return { status: 'completed' as const, lastMessage, tools: null, annotations: '{}' }
}

function findRoles(turns: readonly ReturnType<typeof createTurn>[]): void {
  const finder = new AgentRoleFinder()
  for (const turn of turns) finder.add(turn)
}
