/** What engines of the world make of prompts, and what they sample. */

/** A message as it stands in a request, or on record. */
export interface ChatMessage {
  role: string
  content: string | readonly { text?: string }[] | null
}

export interface Token {
  id: number
  logprob: number
}

/** What an engine has really done for a call, whatever it told of it: the checker holds the record against this. */
export interface Served {
  call: string
  prompt: readonly number[]
  readonly tokens: Token[]
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
    END_OF_TURN,
  ])
  return [...ids, ROLES.assistant!]
}

/** The end of the turn is sampled too, unless the length is over before. @param salt no two samples have the same */
export function sample(
  vocabulary: Vocabulary,
  prompt: readonly number[],
  salt: number,
  maxTokens = Number.POSITIVE_INFINITY,
): Token[] {
  let state = hash(`${salt} ${prompt.join(' ')}`)
  const next = () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9
    state ^= state >>> 13
    return state >>> 0
  }
  const mostWords = next() % 4 === 0 ? LONG * MAX_WORDS : MAX_WORDS
  const words = Array.from({ length: 1 + (next() % mostWords) }, () => vocabulary.word(next()))
  const ids = [...words, vocabulary.endOfTurn].slice(0, maxTokens)
  // Sixteenths, so that they are the same number however they are written.
  return ids.map((id) => ({ id, logprob: -(next() % 160) / 16 }))
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
