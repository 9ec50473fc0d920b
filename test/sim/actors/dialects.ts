/** The dialects of agents: how each builds a request and reads its response. */
import { type Call, type ChatMessage, contentOf } from './oracle.ts'

export const DIALECTS = ['chat', 'messages', 'responses', 'completions'] as const
export type Dialect = (typeof DIALECTS)[number]

export interface DialectCall {
  messages: readonly ChatMessage[]
  stream: boolean
  maxTokens: number | undefined
  /** Whether the request offers tools. */
  tools: boolean
}

/** An agent's reading of a response: complete, an error code, or neither. */
export type Read = { text: string; calls: Call[] } | { code: string | undefined }

interface DialectRules {
  path: string
  body(call: DialectCall): object
  /**
   * Reads a response that is not streamed.
   * @param text of a response with status 200
   */
  whole(text: string): Read
  streamed(events: readonly StreamEvent[]): Read
}

// biome-ignore lint/suspicious/noExplicitAny: events of every dialect
type StreamEvent = any

/** The limit of agents without one, for APIs that require it. */
const NO_LIMIT = 4_096

const PARAMETERS = { type: 'object', properties: { text: { type: 'string' }, limit: { type: 'number' } } }
const TOOLS = ['edit', 'bash']

const RULES: Record<Dialect, DialectRules> = {
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
    whole: (text) => {
      const { content, tool_calls: calls = [] } = JSON.parse(text).choices[0].message
      return { text: content ?? '', calls }
    },
    streamed: (events) => {
      const read = openAiStream(events, (choice) => choice?.delta.content)
      return 'text' in read ? { ...read, calls: callsOfStream(events) } : read
    },
  },
  messages: {
    path: 'messages',
    body: ({ messages: [system, ...messages], stream, maxTokens = NO_LIMIT, tools }) => ({
      system: contentOf(system!),
      messages: messages.map(asBlocks),
      stream,
      max_tokens: maxTokens,
      ...(tools && { tools: TOOLS.map((name) => ({ name, input_schema: PARAMETERS })) }),
    }),
    whole: (text) => ofBlocks(JSON.parse(text).content),
    streamed: (events) => {
      if (events.at(-1)?.type !== 'message_stop') return failed(events)
      const blocks = events.filter(({ type }) => type === 'content_block_start')
      return ofBlocks(
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
      instructions: contentOf(system!),
      input: messages.flatMap(asItems),
      stream,
      max_output_tokens: maxTokens,
      ...(tools && {
        tools: TOOLS.map((name) => ({ type: 'function', name, parameters: PARAMETERS, strict: false })),
      }),
    }),
    whole: (text) => ofResponse(JSON.parse(text)),
    streamed: (events) => {
      const last = events.at(-1)
      const isEnd = last?.type === 'response.completed' || last?.type === 'response.incomplete'
      return isEnd ? ofResponse(last.response) : failed(events)
    },
  },
  completions: {
    path: 'completions',
    body: ({ messages, stream, maxTokens = NO_LIMIT }) => ({
      prompt: textPrompt(messages),
      stream,
      max_tokens: maxTokens,
    }),
    whole: (text) => ({ text: JSON.parse(text).choices[0].text, calls: [] }),
    streamed: (events) => openAiStream(events, (choice) => choice?.text),
  },
}

export function createRequest(dialect: Dialect, call: DialectCall): { path: string; body: object } {
  const { path, body } = RULES[dialect]
  return { path: `/v1/${path}`, body: { model: 'sim', ...body(call) } }
}

/**
 * Reads a response.
 * @param isComplete whether the connection ended as HTTP requires
 */
export function readResponse(dialect: Dialect, text: string, stream: boolean, isComplete: boolean): Read {
  const rules = RULES[dialect]
  if (!stream) return isComplete ? rules.whole(text) : { code: undefined }
  // Text after the last empty line is an incomplete event.
  const events = text
    .slice(0, text.lastIndexOf('\n\n') + 2)
    .split('\n\n')
    .flatMap((event) => /^data: (.*)$/m.exec(event)?.[1] ?? [])
    .map((data) => (data === '[DONE]' ? { type: data } : JSON.parse(data)))
  return rules.streamed(events)
}

/** Returns the error code of a response with a status other than 200. */
export function getCode(text: string): string | undefined {
  try {
    return codeIn(JSON.parse(text))
  } catch {
    return undefined
  }
}

function codeIn(event: StreamEvent): string | undefined {
  const error = event.error ?? event.response?.error
  return error?.details?.error_code ?? error?.code ?? event.code ?? undefined
}

function failed(events: readonly StreamEvent[]): Read {
  return { code: events.map(codeIn).find((code) => code !== undefined) }
}

function openAiStream(
  events: readonly StreamEvent[],
  getText: (choice: StreamEvent) => string | undefined,
): Read {
  if (events.at(-1)?.type !== '[DONE]' || events.some(({ error }) => error)) return failed(events)
  return { text: events.map(({ choices }) => getText(choices?.[0]) ?? '').join(''), calls: [] }
}

function callsOfStream(events: readonly StreamEvent[]): Call[] {
  const calls: Call[] = []
  for (const { index, id, function: called } of events.flatMap(
    ({ choices }) => choices?.[0]?.delta.tool_calls ?? [],
  )) {
    calls[index] ??= { id, type: 'function', function: { name: '', arguments: '' } }
    const call = calls[index]
    call.function.name += called?.name ?? ''
    call.function.arguments += called?.arguments ?? ''
  }
  return calls
}

function asBlocks({ role, content, tool_calls: calls = [], tool_call_id: id }: ChatMessage): object {
  if (role === 'tool') return { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content }] }
  if (calls.length === 0) return { role, content }
  const uses = calls.map(({ id, function: { name, arguments: input } }) => ({
    type: 'tool_use',
    id,
    name,
    input: JSON.parse(input),
  }))
  return { role, content: content ? [{ type: 'text', text: content }, ...uses] : uses }
}

// biome-ignore lint/suspicious/noExplicitAny: blocks of every type
function ofBlocks(blocks: readonly any[]): Read {
  const calls = blocks
    .filter(({ type }) => type === 'tool_use')
    .map(({ id, name, input }) => {
      const value = typeof input === 'string' ? input : JSON.stringify(input)
      return { id, type: 'function' as const, function: { name, arguments: value } }
    })
  return { text: blocks.map(({ text }) => text ?? '').join(''), calls }
}

function asItems({ role, content, tool_calls: calls = [], tool_call_id: id }: ChatMessage): object[] {
  if (role === 'tool') return [{ type: 'function_call_output', call_id: id, output: content }]
  const items = calls.map(({ id, function: called }) => ({ type: 'function_call', call_id: id, ...called }))
  return content ? [{ role, content }, ...items] : items
}

// biome-ignore lint/suspicious/noExplicitAny: items of every type
function ofResponse({ output }: { output: any[] }): Read {
  const calls = output
    .filter(({ type }) => type === 'function_call')
    .map(({ call_id: id, name, arguments: input }) => ({
      id,
      type: 'function' as const,
      function: { name, arguments: input },
    }))
  const texts = output.flatMap(({ content }) => content ?? []).map(({ text }) => text ?? '')
  return { text: texts.join(''), calls }
}

/** Renders a conversation as text, for the completions dialect. */
function textPrompt(messages: readonly ChatMessage[]): string {
  const lines = messages.map((message) => `${message.role} : ${contentOf(message)}\n`)
  return `${lines.join('')}assistant : `
}
