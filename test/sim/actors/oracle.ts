/** What every engine of the world samples: a function of the prompt and the weights, that the checker knows too. */

export interface ChatMessage {
  role: string
  content: string
}

export interface Sampled {
  ids: number[]
  logprobs: number[]
}

const ROLES: Record<string, number> = { system: 1, user: 2, assistant: 3, tool: 4 }
export const END_OF_TURN = 9
const FIRST_WORD = 1_000
const WORDS = 5_000
const MAX_WORDS = 12

/** The engine's chat template: a token for the role, one for each word, one for the end. */
export function promptIds(messages: readonly ChatMessage[]): number[] {
  const ids = messages.flatMap(({ role, content }) => [
    ROLES[role] ?? 5,
    ...content.split(/\s+/).filter(Boolean).map(wordId),
    END_OF_TURN,
  ])
  return [...ids, ROLES.assistant!]
}

/** The end of the turn is sampled too, unless the length is over before. */
export function sample(
  prompt: readonly number[],
  weights: string,
  maxTokens = Number.POSITIVE_INFINITY,
): Sampled {
  let state = hash(`${weights} ${prompt.join(' ')}`)
  const next = () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9
    state ^= state >>> 13
    return state >>> 0
  }
  const words = Array.from({ length: 1 + (next() % MAX_WORDS) }, () => FIRST_WORD + (next() % WORDS))
  const ids = [...words, END_OF_TURN].slice(0, maxTokens)
  // Sixteenths, so that they are the same number however they are written.
  return { ids, logprobs: ids.map(() => -(next() % 160) / 16) }
}

export function textOf(id: number): string {
  return id === END_OF_TURN ? '' : `t${id} `
}

/** Ids of the words that {@link textOf} wrote are those ids again. */
function wordId(word: string): number {
  const own = /^t(\d+)$/.exec(word)
  return own ? Number(own[1]) : 20_000 + (hash(word) % 40_000)
}

export function hash(text: string): number {
  let state = 0x811c9dc5
  for (let at = 0; at < text.length; at += 1) state = Math.imul(state ^ text.charCodeAt(at), 0x01000193)
  return state >>> 0
}
