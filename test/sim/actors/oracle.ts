/** The prompts that simulated engines render, and the completions that they sample. */

/** A message of a request or of a recorded turn. */
export interface ChatMessage {
  role: string
  content: string | readonly { text?: string }[] | null
  tool_calls?: readonly ToolCall[]
  tool_call_id?: string
}

/** A tool call, as in Chat Completions. */
export interface ToolCall {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

export interface Token {
  id: number
  logprob: number
}

/** A sampled completion. */
export interface Sample {
  tokens: Token[]
  content: string
  toolCalls: ToolCall[]
}

/** The tokens that an engine actually sampled for a request, with which the checker compares the recorded turn. */
export interface Generation {
  requestKey: string
  prompt: readonly number[]
  readonly tokens: Token[]
  /** The number of tokens that the request samples if nothing interrupts it. */
  readonly length: number
  /** The tokens of the complete response, of which earlier requests may have sampled a part. */
  readonly responseTokens: readonly Token[]
  /** The weight version of each token. */
  readonly weights: string[]
  /** All weight versions of its engine, in order. */
  readonly versions: readonly string[]
  /** Whether its response reports the weight versions of its first and last token. */
  readonly reports: { start: boolean; end: boolean }
}

/** A response that an engine has started to sample. */
interface StartedResponse {
  readonly prompt: readonly number[]
  readonly params: SamplingParams
  readonly ids: readonly number[]
}

/**
 * The responses that all engines of a run have started. An engine whose prompt ends with a part of such a response
 * samples the rest of it, so that a continued response equals the uncut one.
 */
export class StartedResponses {
  readonly #responses: StartedResponse[] = []

  add(prompt: readonly number[], params: SamplingParams, { tokens }: Sample): void {
    this.#responses.push({ prompt, params, ids: tokens.map(({ id }) => id) })
  }

  /** Returns the response that the prompt continues. */
  find(prompt: readonly number[]): StartedResponse | undefined {
    return this.#responses.findLast(
      (response) =>
        response.prompt.length < prompt.length &&
        prompt.length <= response.prompt.length + response.ids.length &&
        prompt.every(
          (id, index) => id === (response.prompt[index] ?? response.ids[index - response.prompt.length]),
        ),
    )
  }
}

/** The tokens that an engine can sample, and their texts. */
export interface Vocabulary {
  readonly endOfTurn: number
  /** Returns one of the words for any number. */
  word(number: number): number
  getText(id: number): string
  /** Encodes a text that is not a conversation. */
  encode(text: string): number[]
}

const ROLES: Record<string, number> = { system: 1, developer: 1, user: 2, assistant: 3, tool: 4 }
const END_OF_TURN = 9
const FIRST_WORD = 1_000
const WORDS = 5_000
/** More, with the end of turn, than the 16 tokens that engines generate by default on the completions route. */
const MAX_WORDS = 18
/** One completion in four is long, so that faults can occur while it is streamed. */
const LONG_FACTOR = 5

/** The vocabulary of engines that render and tokenize prompts themselves: one token per word. */
export const WORD_VOCABULARY: Vocabulary = {
  endOfTurn: END_OF_TURN,
  word: (number) => FIRST_WORD + (number % WORDS),
  getText: (id) => (id === END_OF_TURN ? '' : `t${id} `),
  encode: (text) => text.split(/\s+/).filter(Boolean).map(encodeWord),
}

/** Renders the chat template of these engines: one token for the role, one for each word, one for the end. */
export function renderPrompt(messages: readonly ChatMessage[]): number[] {
  const ids = messages.flatMap((message) => [
    ROLES[message.role] ?? 5,
    ...WORD_VOCABULARY.encode(getContent(message)),
    ...(message.tool_calls ?? []).flatMap((toolCall) => WORD_VOCABULARY.encode(renderToolCall(toolCall))),
    END_OF_TURN,
  ])
  return [...ids, ROLES.assistant!]
}

export interface SamplingParams {
  maxTokens?: number | undefined
  /** Whether the request offers tools. */
  offersTools: boolean
  /** Differs for each sample, unless samples are to be equal. */
  salt: number
}

/** Samples a completion. It includes the end of turn unless the limit is reached before. */
export function sample(
  vocabulary: Vocabulary,
  prompt: readonly number[],
  { maxTokens = Number.POSITIVE_INFINITY, offersTools, salt }: SamplingParams,
): Sample {
  let state = hash(`${salt} ${prompt.join(' ')}`)
  const next = () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9
    state ^= state >>> 13
    return state >>> 0
  }
  const callsTools = offersTools && next() % 8 < 5
  const mostWords = callsTools ? 4 : next() % 4 === 0 ? LONG_FACTOR * MAX_WORDS : MAX_WORDS
  const words = Array.from({ length: 1 + (next() % mostWords) }, () => vocabulary.word(next()))
  const toolCalls = Array.from({ length: callsTools ? 1 + (next() % 2) : 0 }, () => drawToolCall(next))
  const toolCallIds = toolCalls.flatMap((toolCall) => vocabulary.encode(`\n${renderToolCall(toolCall)}`))
  const ids = [...words, ...toolCallIds, vocabulary.endOfTurn].slice(0, maxTokens)
  return {
    // Sixteenths, so that every number format represents them exactly.
    tokens: ids.map((id) => ({ id, logprob: -(next() % 160) / 16 })),
    content: words.slice(0, maxTokens).map(vocabulary.getText).join(''),
    toolCalls: ids.length < words.length + toolCallIds.length ? [] : toolCalls,
  }
}

/**
 * Draws a tool call whose arguments agents normalize: white space at line ends, omitted members, a number as text, and
 * a long text in one of eight.
 */
function drawToolCall(next: () => number): ToolCall {
  const name = next() % 3 === 0 ? 'bash' : 'edit'
  const text = next() % 8 === 0 ? 'word '.repeat(400) : `line ${next() % 100} `
  const input = { text, ...(next() % 2 === 0 && { limit: String(next() % 10) }) }
  const id = `engine-${next() % 1_000}`
  return { id, type: 'function', function: { name, arguments: JSON.stringify(input) } }
}

/** Renders a tool call in the Hermes format. */
function renderToolCall({ function: { name, arguments: input } }: ToolCall): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`
}

/** Returns the limit of a request: each of its attempts has the same one. */
export function getMaxTokens(requestKey: string): number | undefined {
  const drawn = hash(requestKey) % 8
  return drawn < 2 ? 2 + 2 * drawn : undefined
}

/** Finds the key of a request in the text of its prompt. */
export function findRequestKey(text: string): string {
  return text.match(/s\d+\/agent\d+\/\d+ go on/g)?.at(-1) ?? ''
}

export function getContent({ content }: ChatMessage): string {
  return typeof content === 'string' ? content : (content ?? []).map(({ text }) => text ?? '').join('')
}

/** Encodes a word. A word that {@link WORD_VOCABULARY} decoded is encoded as its original id. */
function encodeWord(word: string): number {
  const match = /^t(\d+)$/.exec(word)
  return match ? Number(match[1]) : 20_000 + (hash(word) % 40_000)
}

export function hash(text: string): number {
  let state = 0x811c9dc5
  for (let index = 0; index < text.length; index += 1)
    state = Math.imul(state ^ text.charCodeAt(index), 0x01000193)
  return state >>> 0
}
