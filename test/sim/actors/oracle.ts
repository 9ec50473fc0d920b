/** The prompts that simulated engines render, and the completions that they sample. */

/** A message of a request or of a recorded turn. */
export interface ChatMessage {
  role: string
  content: string | readonly { text?: string }[] | null
  tool_calls?: readonly Call[]
  tool_call_id?: string
}

/** A tool call, as in Chat Completions. */
export interface Call {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

export interface Token {
  id: number
  logprob: number
}

/** A completion as the engine sampled it. */
export interface Sampled {
  tokens: Token[]
  content: string
  calls: Call[]
}

/** An engine's actual work for a request, whatever it reported: the checker compares the recorded turn with it. */
export interface Served {
  call: string
  prompt: readonly number[]
  /** The tokens that were generated. */
  readonly tokens: Token[]
  /** The number of tokens of the complete completion. */
  readonly length: number
  /** The tokens of the whole response, of which earlier requests may have sampled a part. */
  readonly whole: readonly Token[]
  /** The weight version of each token. */
  readonly weights: string[]
  /** All weight versions of its engine, in order. */
  readonly versions: readonly string[]
  /** Whether its response reports the weight versions of its first and last token. */
  readonly tells: { start: boolean; end: boolean }
}

/** A response that an engine began to sample. */
interface BegunResponse {
  readonly prompt: readonly number[]
  readonly wanted: Wanted
  readonly ids: readonly number[]
}

/**
 * The responses that all engines of a run have begun: an engine whose prompt ends with a part of one samples its rest,
 * so that a continued response equals the uncut one.
 */
export class BegunResponses {
  readonly #responses: BegunResponse[] = []

  add(prompt: readonly number[], wanted: Wanted, { tokens }: Sampled): void {
    this.#responses.push({ prompt, wanted, ids: tokens.map(({ id }) => id) })
  }

  /** Returns the response that the prompt continues. */
  find(prompt: readonly number[]): BegunResponse | undefined {
    return this.#responses.findLast(
      (response) =>
        response.prompt.length < prompt.length &&
        prompt.length <= response.prompt.length + response.ids.length &&
        prompt.every((id, at) => id === (response.prompt[at] ?? response.ids[at - response.prompt.length])),
    )
  }
}

/** The tokens that an engine can sample, and their texts. */
export interface Vocabulary {
  readonly endOfTurn: number
  /** Returns one of the words for any number. */
  word(number: number): number
  textOf(id: number): string
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
const LONG = 5

/** The vocabulary of engines that render and tokenize themselves: one token per word. */
export const WORD_VOCABULARY: Vocabulary = {
  endOfTurn: END_OF_TURN,
  word: (number) => FIRST_WORD + (number % WORDS),
  textOf: (id) => (id === END_OF_TURN ? '' : `t${id} `),
  encode: (text) => text.split(/\s+/).filter(Boolean).map(wordId),
}

/** Renders their chat template: one token for the role, one for each word, one for the end. */
export function promptIds(messages: readonly ChatMessage[]): number[] {
  const ids = messages.flatMap((message) => [
    ROLES[message.role] ?? 5,
    ...WORD_VOCABULARY.encode(contentOf(message)),
    ...(message.tool_calls ?? []).flatMap((call) => WORD_VOCABULARY.encode(callText(call))),
    END_OF_TURN,
  ])
  return [...ids, ROLES.assistant!]
}

/** Sampling parameters. */
export interface Wanted {
  maxTokens?: number | undefined
  /** Whether tools are offered. */
  calls: boolean
  /** Differs for each sample, unless samples are to be equal. */
  salt: number
}

/** Samples a completion. It includes the end of turn, unless the limit is reached before. */
export function sample(
  vocabulary: Vocabulary,
  prompt: readonly number[],
  { maxTokens = Number.POSITIVE_INFINITY, calls: mayCall, salt }: Wanted,
): Sampled {
  let state = hash(`${salt} ${prompt.join(' ')}`)
  const next = () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9
    state ^= state >>> 13
    return state >>> 0
  }
  const doesCall = mayCall && next() % 8 < 5
  const mostWords = doesCall ? 4 : next() % 4 === 0 ? LONG * MAX_WORDS : MAX_WORDS
  const words = Array.from({ length: 1 + (next() % mostWords) }, () => vocabulary.word(next()))
  const calls = Array.from({ length: doesCall ? 1 + (next() % 2) : 0 }, () => drawCall(next))
  const callIds = calls.flatMap((call) => vocabulary.encode(`\n${callText(call)}`))
  const ids = [...words, ...callIds, vocabulary.endOfTurn].slice(0, maxTokens)
  return {
    // Sixteenths, so that every number format represents them exactly.
    tokens: ids.map((id) => ({ id, logprob: -(next() % 160) / 16 })),
    content: words.slice(0, maxTokens).map(vocabulary.textOf).join(''),
    calls: ids.length < words.length + callIds.length ? [] : calls,
  }
}

/**
 * Draws a tool call with what agents normalize: white space at line ends, omitted members, a number as text, and one
 * long text in eight.
 */
function drawCall(next: () => number): Call {
  const name = next() % 3 === 0 ? 'bash' : 'edit'
  const text = next() % 8 === 0 ? 'word '.repeat(400) : `line ${next() % 100} `
  const given = { text, ...(next() % 2 === 0 && { limit: String(next() % 10) }) }
  const id = `engine-${next() % 1_000}`
  return { id, type: 'function', function: { name, arguments: JSON.stringify(given) } }
}

/** Renders a tool call in the Hermes format. */
function callText({ function: { name, arguments: given } }: Call): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${given}}\n</tool_call>`
}

/**
 * Returns the limit of a request. It is a function of the request, so that each attempt has the same and the checker
 * knows it.
 */
export function maxTokensOf(call: string): number | undefined {
  const drawn = hash(call) % 8
  return drawn < 2 ? 2 + 2 * drawn : undefined
}

/** Returns the identifier of a request within its prompt, which is unique. */
export function callIn(text: string): string {
  return text.match(/s\d+\/agent\d+\/\d+ go on/g)?.at(-1) ?? ''
}

export function contentOf({ content }: ChatMessage): string {
  return typeof content === 'string' ? content : (content ?? []).map(({ text }) => text ?? '').join('')
}

/** Encodes a word. Words that {@link WORD_VOCABULARY} decoded are encoded as their original ids. */
function wordId(word: string): number {
  const own = /^t(\d+)$/.exec(word)
  return own ? Number(own[1]) : 20_000 + (hash(word) % 40_000)
}

export function hash(text: string): number {
  let state = 0x811c9dc5
  for (let at = 0; at < text.length; at += 1) state = Math.imul(state ^ text.charCodeAt(at), 0x01000193)
  return state >>> 0
}
