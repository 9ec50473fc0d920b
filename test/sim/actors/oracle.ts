/** What engines of the world make of prompts, and what they sample. */

/** A message as it stands in a request, or on record. */
export interface ChatMessage {
  role: string
  content: string | readonly { text?: string }[] | null
  tool_calls?: readonly Call[]
  tool_call_id?: string
}

/** A call of a tool, as Chat Completions has it. */
export interface Call {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

export interface Token {
  id: number
  logprob: number
}

/** An answer as an engine means it. */
export interface Sampled {
  tokens: Token[]
  content: string
  calls: Call[]
}

/** What an engine has really done for a call, whatever it told of it: the checker holds the record against this. */
export interface Served {
  call: string
  prompt: readonly number[]
  /** As far as it came. */
  readonly tokens: Token[]
  /** How many there were to be. */
  readonly length: number
  /** Of each token. */
  readonly weights: string[]
  /** All that its engine has had, in order. */
  readonly versions: readonly string[]
  /** Whether its answer says of which weights its first and its last token are. */
  readonly tells: { start: boolean; end: boolean }
}

/** What an engine can sample, and how its ids read. */
export interface Vocabulary {
  readonly endOfTurn: number
  /** One of the words, by any number. */
  word(number: number): number
  textOf(id: number): string
  /** Of a text that is no conversation. */
  encode(text: string): number[]
}

const ROLES: Record<string, number> = { system: 1, developer: 1, user: 2, assistant: 3, tool: 4 }
const END_OF_TURN = 9
const FIRST_WORD = 1_000
const WORDS = 5_000
/** With the end of the turn more than the 16 that engines give to who names no limit on the route of completions. */
const MAX_WORDS = 18
/** One answer of four is long: much can happen while it is on its way. */
const LONG = 5

/** Of engines that render and tokenize themselves: a token for each word. */
export const WORD_VOCABULARY: Vocabulary = {
  endOfTurn: END_OF_TURN,
  word: (number) => FIRST_WORD + (number % WORDS),
  textOf: (id) => (id === END_OF_TURN ? '' : `t${id} `),
  encode: (text) => text.split(/\s+/).filter(Boolean).map(wordId),
}

/** Their chat template: a token for the role, one for each word, one for the end. */
export function promptIds(messages: readonly ChatMessage[]): number[] {
  const ids = messages.flatMap((message) => [
    ROLES[message.role] ?? 5,
    ...WORD_VOCABULARY.encode(contentOf(message)),
    ...(message.tool_calls ?? []).flatMap((call) => WORD_VOCABULARY.encode(callText(call))),
    END_OF_TURN,
  ])
  return [...ids, ROLES.assistant!]
}

/** What can be asked of an engine. */
export interface Wanted {
  maxTokens?: number | undefined
  /** Tools are offered. */
  calls: boolean
  /** No two samples have the same, unless they are to be equal. */
  salt: number
}

/** The end of the turn is sampled too, unless the length is over before. */
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
    // Sixteenths, so that they are the same number however they are written.
    tokens: ids.map((id) => ({ id, logprob: -(next() % 160) / 16 })),
    content: words.slice(0, maxTokens).map(vocabulary.textOf).join(''),
    calls: ids.length < words.length + callIds.length ? [] : calls,
  }
}

/** With what agents tidy: white space at line ends, members left out, a number as text, and of eight one that is long. */
function drawCall(next: () => number): Call {
  const name = next() % 3 === 0 ? 'bash' : 'edit'
  const text = next() % 8 === 0 ? 'word '.repeat(400) : `line ${next() % 100} `
  const given = { text, ...(next() % 2 === 0 && { limit: String(next() % 10) }) }
  const id = `engine-${next() % 1_000}`
  return { id, type: 'function', function: { name, arguments: JSON.stringify(given) } }
}

/** As Hermes writes it. */
function callText({ function: { name, arguments: given } }: Call): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${given}}\n</tool_call>`
}

/** How many tokens a call asks for. A function of the call, so that each try asks for as many, and the checker knows. */
export function maxTokensOf(call: string): number | undefined {
  const drawn = hash(call) % 8
  return drawn < 2 ? 2 + 2 * drawn : undefined
}

/** What names a call within its prompt: no other call has it. */
export function callIn(text: string): string {
  return text.match(/s\d+\/agent\d+\/\d+ go on/g)?.at(-1) ?? ''
}

export function contentOf({ content }: ChatMessage): string {
  return typeof content === 'string' ? content : (content ?? []).map(({ text }) => text ?? '').join('')
}

/** Ids of the words that {@link WORD_VOCABULARY} wrote are those ids again. */
function wordId(word: string): number {
  const own = /^t(\d+)$/.exec(word)
  return own ? Number(own[1]) : 20_000 + (hash(word) % 40_000)
}

export function hash(text: string): number {
  let state = 0x811c9dc5
  for (let at = 0; at < text.length; at += 1) state = Math.imul(state ^ text.charCodeAt(at), 0x01000193)
  return state >>> 0
}
