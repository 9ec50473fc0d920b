/** The dialects of agents: each builds requests and parses responses. */
import { type ChatMessage, getContent, type ToolCall } from './oracle.ts'

export const DIALECTS = ['chat', 'messages', 'responses', 'completions'] as const
export type Dialect = (typeof DIALECTS)[number]

export interface RequestOptions {
  messages: readonly ChatMessage[]
  stream: boolean
  maxTokens: number | undefined
  /** Whether the request offers tools. */
  tools: boolean
}

/** What an agent parsed from a response: a completion, or the error code if there is one. */
export type ParsedResponse = { text: string; toolCalls: ToolCall[] } | { code: string | undefined }

interface DialectAdapter {
  path: string
  body(options: RequestOptions): object
  /** Parses the body of a complete response with status 200. */
  parseComplete(text: string): ParsedResponse
  parseStream(events: readonly StreamEvent[]): ParsedResponse
}

// biome-ignore lint/suspicious/noExplicitAny: events of every dialect
type StreamEvent = any

/** The limit that agents without one send to APIs that require it. */
const DEFAULT_MAX_TOKENS = 4_096

const PARAMETERS = { type: 'object', properties: { text: { type: 'string' }, limit: { type: 'number' } } }
const TOOLS = ['edit', 'bash']

const ADAPTERS: Record<Dialect, DialectAdapter> = {
  chat: {
    path: 'chat/completions',
    body: ({ messages, stream, maxTokens, tools }) => ({
      messages,
      stream,
      max_tokens: maxTokens,
      ...(tools && {
        tools: TOOLS.map((name) => ({ type: 'function', function: { name, parameters: PARAMETERS } })),
      }),
    }),
    parseComplete: (text) => {
      const { content, tool_calls: toolCalls = [] } = JSON.parse(text).choices[0].message
      return { text: content ?? '', toolCalls }
    },
    parseStream: (events) => {
      const parsed = parseOpenAiStream(events, (choice) => choice?.delta.content)
      return 'text' in parsed ? { ...parsed, toolCalls: joinToolCalls(events) } : parsed
    },
  },
  messages: {
    path: 'messages',
    body: ({ messages: [system, ...messages], stream, maxTokens = DEFAULT_MAX_TOKENS, tools }) => ({
      system: getContent(system!),
      messages: messages.map(toBlocks),
      stream,
      max_tokens: maxTokens,
      ...(tools && { tools: TOOLS.map((name) => ({ name, input_schema: PARAMETERS })) }),
    }),
    parseComplete: (text) => parseBlocks(JSON.parse(text).content),
    parseStream: (events) => {
      if (events.at(-1)?.type !== 'message_stop') return toFailure(events)
      const blocks = events.filter(({ type }) => type === 'content_block_start')
      return parseBlocks(
        blocks.map(({ index, content_block: block }) => {
          const deltas = events.filter(
            (event) => event.type === 'content_block_delta' && event.index === index,
          )
          const joinDeltas = (member: string) => deltas.map(({ delta }) => delta[member] ?? '').join('')
          return { ...block, text: joinDeltas('text'), input: joinDeltas('partial_json') }
        }),
      )
    },
  },
  responses: {
    path: 'responses',
    body: ({ messages: [system, ...messages], stream, maxTokens, tools }) => ({
      instructions: getContent(system!),
      input: messages.flatMap(toItems),
      stream,
      max_output_tokens: maxTokens,
      ...(tools && {
        tools: TOOLS.map((name) => ({ type: 'function', name, parameters: PARAMETERS, strict: false })),
      }),
    }),
    parseComplete: (text) => parseResponse(JSON.parse(text)),
    parseStream: (events) => {
      const last = events.at(-1)
      const isEnd = last?.type === 'response.completed' || last?.type === 'response.incomplete'
      return isEnd ? parseResponse(last.response) : toFailure(events)
    },
  },
  completions: {
    path: 'completions',
    body: ({ messages, stream, maxTokens = DEFAULT_MAX_TOKENS }) => ({
      prompt: renderTextPrompt(messages),
      stream,
      max_tokens: maxTokens,
    }),
    parseComplete: (text) => ({ text: JSON.parse(text).choices[0].text, toolCalls: [] }),
    parseStream: (events) => parseOpenAiStream(events, (choice) => choice?.text),
  },
}

export function createRequest(dialect: Dialect, options: RequestOptions): { path: string; body: object } {
  const { path, body } = ADAPTERS[dialect]
  return { path: `/v1/${path}`, body: { model: 'sim', ...body(options) } }
}

/** @param isComplete whether the connection ended as HTTP requires */
export function readResponse(
  dialect: Dialect,
  text: string,
  stream: boolean,
  isComplete: boolean,
): ParsedResponse {
  const adapter = ADAPTERS[dialect]
  if (!stream) return isComplete ? adapter.parseComplete(text) : { code: undefined }
  // Text after the last empty line is an incomplete event.
  const events = text
    .slice(0, text.lastIndexOf('\n\n') + 2)
    .split('\n\n')
    .flatMap((event) => /^data: (.*)$/m.exec(event)?.[1] ?? [])
    .map((data) => (data === '[DONE]' ? { type: data } : JSON.parse(data)))
  return adapter.parseStream(events)
}

/** Parses the error code of a response with a status other than 200. */
export function parseErrorCode(text: string): string | undefined {
  try {
    return findErrorCode(JSON.parse(text))
  } catch {
    return undefined
  }
}

function findErrorCode(event: StreamEvent): string | undefined {
  const error = event.error ?? event.response?.error
  return error?.details?.error_code ?? error?.code ?? event.code ?? undefined
}

function toFailure(events: readonly StreamEvent[]): ParsedResponse {
  return { code: events.map(findErrorCode).find((code) => code !== undefined) }
}

function parseOpenAiStream(
  events: readonly StreamEvent[],
  getText: (choice: StreamEvent) => string | undefined,
): ParsedResponse {
  if (events.at(-1)?.type !== '[DONE]' || events.some(({ error }) => error)) return toFailure(events)
  return { text: events.map(({ choices }) => getText(choices?.[0]) ?? '').join(''), toolCalls: [] }
}

function joinToolCalls(events: readonly StreamEvent[]): ToolCall[] {
  const toolCalls: ToolCall[] = []
  for (const { index, id, function: called } of events.flatMap(
    ({ choices }) => choices?.[0]?.delta.tool_calls ?? [],
  )) {
    toolCalls[index] ??= { id, type: 'function', function: { name: '', arguments: '' } }
    const toolCall = toolCalls[index]
    toolCall.function.name += called?.name ?? ''
    toolCall.function.arguments += called?.arguments ?? ''
  }
  return toolCalls
}

function toBlocks({ role, content, tool_calls: toolCalls = [], tool_call_id: id }: ChatMessage): object {
  if (role === 'tool') return { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content }] }
  if (toolCalls.length === 0) return { role, content }
  const uses = toolCalls.map(({ id, function: { name, arguments: input } }) => ({
    type: 'tool_use',
    id,
    name,
    input: JSON.parse(input),
  }))
  return { role, content: content ? [{ type: 'text', text: content }, ...uses] : uses }
}

// biome-ignore lint/suspicious/noExplicitAny: blocks of every type
function parseBlocks(blocks: readonly any[]): ParsedResponse {
  const toolCalls = blocks
    .filter(({ type }) => type === 'tool_use')
    .map(({ id, name, input }) => {
      const value = typeof input === 'string' ? input : JSON.stringify(input)
      return { id, type: 'function' as const, function: { name, arguments: value } }
    })
  return { text: blocks.map(({ text }) => text ?? '').join(''), toolCalls }
}

function toItems({ role, content, tool_calls: toolCalls = [], tool_call_id: id }: ChatMessage): object[] {
  if (role === 'tool') return [{ type: 'function_call_output', call_id: id, output: content }]
  const items = toolCalls.map(({ id, function: called }) => ({
    type: 'function_call',
    call_id: id,
    ...called,
  }))
  return content ? [{ role, content }, ...items] : items
}

// biome-ignore lint/suspicious/noExplicitAny: items of every type
function parseResponse({ output }: { output: any[] }): ParsedResponse {
  const toolCalls = output
    .filter(({ type }) => type === 'function_call')
    .map(({ call_id: id, name, arguments: input }) => ({
      id,
      type: 'function' as const,
      function: { name, arguments: input },
    }))
  const texts = output.flatMap(({ content }) => content ?? []).map(({ text }) => text ?? '')
  return { text: texts.join(''), toolCalls }
}

/** Renders a conversation as text, for the completions dialect. */
function renderTextPrompt(messages: readonly ChatMessage[]): string {
  const lines = messages.map((message) => `${message.role} : ${getContent(message)}\n`)
  return `${lines.join('')}assistant : `
}
