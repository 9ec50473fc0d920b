/** The dialects that agents speak: how each asks, and how it reads its answer. */
import { type ChatMessage, contentOf } from './oracle.ts'

export const DIALECTS = ['chat', 'messages', 'responses', 'completions'] as const
export type Dialect = (typeof DIALECTS)[number]

export interface DialectCall {
  messages: readonly ChatMessage[]
  stream: boolean
  maxTokens: number | undefined
}

/** What an agent makes of an answer: all of it, an error that it was told, or neither. */
export type Read = { text: string } | { code: string | undefined }

interface DialectRules {
  path: string
  body(call: DialectCall): object
  /** @param text of an answer with the status 200 */
  whole(text: string): Read
  streamed(events: readonly StreamEvent[]): Read
}

// biome-ignore lint/suspicious/noExplicitAny: events of every dialect
type StreamEvent = any

/** What an API that wants a limit is told by agents that have none. */
const NO_LIMIT = 4_096

const RULES: Record<Dialect, DialectRules> = {
  chat: {
    path: 'chat/completions',
    body: ({ messages, stream, maxTokens }) => ({ messages, stream, max_tokens: maxTokens }),
    whole: (text) => ({ text: JSON.parse(text).choices[0].message.content }),
    streamed: (events) => openAiStream(events, (choice) => choice?.delta.content),
  },
  messages: {
    path: 'messages',
    body: ({ messages: [system, ...messages], stream, maxTokens = NO_LIMIT }) => ({
      system: contentOf(system!),
      messages,
      stream,
      max_tokens: maxTokens,
    }),
    whole: (text) => ({ text: textOfBlocks(JSON.parse(text).content) }),
    streamed: (events) => {
      if (events.at(-1)?.type !== 'message_stop') return failed(events)
      return { text: events.map(({ delta }) => delta?.text ?? '').join('') }
    },
  },
  responses: {
    path: 'responses',
    body: ({ messages: [system, ...messages], stream, maxTokens }) => ({
      instructions: contentOf(system!),
      input: messages,
      stream,
      max_output_tokens: maxTokens,
    }),
    whole: (text) => textOfResponse(JSON.parse(text)),
    streamed: (events) => {
      const last = events.at(-1)
      const isEnd = last?.type === 'response.completed' || last?.type === 'response.incomplete'
      return isEnd ? textOfResponse(last.response) : failed(events)
    },
  },
  completions: {
    path: 'completions',
    body: ({ messages, stream, maxTokens = NO_LIMIT }) => ({
      prompt: textPrompt(messages),
      stream,
      max_tokens: maxTokens,
    }),
    whole: (text) => ({ text: JSON.parse(text).choices[0].text }),
    streamed: (events) => openAiStream(events, (choice) => choice?.text),
  },
}

export function requestOf(dialect: Dialect, call: DialectCall): { path: string; body: object } {
  const { path, body } = RULES[dialect]
  return { path: `/v1/${path}`, body: { model: 'sim', ...body(call) } }
}

/** @param isWhole whether the connection ended as HTTP has it */
export function readAnswer(dialect: Dialect, text: string, stream: boolean, isWhole: boolean): Read {
  const rules = RULES[dialect]
  if (!stream) return isWhole ? rules.whole(text) : { code: undefined }
  // What does not end with an empty line is half an event.
  const events = text
    .slice(0, text.lastIndexOf('\n\n') + 2)
    .split('\n\n')
    .flatMap((event) => /^data: (.*)$/m.exec(event)?.[1] ?? [])
    .map((data) => (data === '[DONE]' ? { type: data } : JSON.parse(data)))
  return rules.streamed(events)
}

/** Of an answer with another status than 200. */
export function codeOf(text: string): string | undefined {
  try {
    return codeIn(JSON.parse(text))
  } catch {
    return undefined
  }
}

function codeIn(said: StreamEvent): string | undefined {
  const error = said.error ?? said.response?.error
  return error?.details?.error_code ?? error?.code ?? said.code ?? undefined
}

function failed(events: readonly StreamEvent[]): Read {
  return { code: events.map(codeIn).find((code) => code !== undefined) }
}

function openAiStream(
  events: readonly StreamEvent[],
  textOf: (choice: StreamEvent) => string | undefined,
): Read {
  if (events.at(-1)?.type !== '[DONE]' || events.some(({ error }) => error)) return failed(events)
  return { text: events.map(({ choices }) => textOf(choices?.[0]) ?? '').join('') }
}

function textOfBlocks(blocks: readonly { text?: string }[]): string {
  return blocks.map(({ text }) => text ?? '').join('')
}

function textOfResponse({ output }: { output: { content?: { text?: string }[] }[] }): Read {
  return { text: output.map(({ content }) => textOfBlocks(content ?? [])).join('') }
}

/** How a conversation looks to who has only a text. */
function textPrompt(messages: readonly ChatMessage[]): string {
  const lines = messages.map((message) => `${message.role} : ${contentOf(message)}\n`)
  return `${lines.join('')}assistant : `
}
