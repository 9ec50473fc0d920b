/** Responses with several choices (`n` above 1), in Chat Completions and Completions. */

import { createInvalidError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { Usage } from '../../../protocol/canonical/messages.ts'

/** A batch of events of one choice. */
export interface ChoiceEvents {
  /** The choice's index, from 0. */
  readonly choice: number
  readonly events: readonly GenerationEvent[]
}

/** Returns the number of choices, if it is not 1. @param n validated by the schema */
export function parseChoiceCount(n: number | null | undefined): { choices?: number } {
  return n === undefined || n === null || n === 1 ? {} : { choices: n }
}

/** Rejects a request for more choices than the limit. @throws ProxyError `invalid_request` */
export function rejectTooManyChoices(choices: number, limit: number): void {
  if (choices > limit) throw createInvalidError(`'n' must be at most ${limit}, and is ${choices}`, 'n')
}

/**
 * Sums usage as OpenAI does: the prompt once, and the sampled tokens of all choices.
 * @returns undefined if the usage of a choice is unknown
 */
export function sumUsage(completions: readonly Pick<Completion, 'end'>[]): Usage | undefined {
  const usages = completions.map(({ end }) => end?.usage).filter((usage) => usage !== undefined)
  const [first] = usages
  if (first === undefined || usages.length < completions.length) return undefined
  const completionTokens = usages.reduce((sum, usage) => sum + usage.completion_tokens, 0)
  const details = usages.flatMap(({ completion_tokens_details: some }) => (some ? [some] : []))
  return {
    ...first,
    completion_tokens: completionTokens,
    total_tokens: first.prompt_tokens + completionTokens,
    ...(details.length > 0 && { completion_tokens_details: sumTokens(details) }),
  }
}

function sumTokens(records: readonly object[]): Record<string, number> {
  const sums: Record<string, number> = {}
  for (const [name, count] of records.flatMap((record) => Object.entries(record))) {
    if (typeof count === 'number') sums[name] = (sums[name] ?? 0) + count
  }
  return sums
}

/** A writer of one choice's chunks, without the end of the stream, which all choices share. */
interface ChoiceWriter {
  write(events: readonly GenerationEvent[]): string
  /** Returns the usage chunk, if the agent requested it, and the end of the stream. */
  finish(usage: Usage | undefined): string
}

/**
 * A writer of a stream of several choices, whose chunks are interleaved as they arrive, each with its choice's `index`.
 */
export class ChoicesWriter {
  readonly #writers: readonly ChoiceWriter[]
  /** The ends of the completed choices. */
  readonly #ends: (GenerationEnd | undefined)[]

  /** @param getWriter creates the writer of a choice */
  constructor(count: number, getWriter: (choice: number) => ChoiceWriter) {
    this.#writers = Array.from({ length: count }, (_, choice) => getWriter(choice))
    this.#ends = new Array<undefined>(count).fill(undefined)
  }

  write({ choice, events }: ChoiceEvents): string {
    const writer = this.#writers[choice]!
    const text = writer.write(events)
    const end = events.findLast((event) => event.type === 'end')
    if (end === undefined) return text
    this.#ends[choice] = end
    if (this.#ends.includes(undefined)) return text
    return text + writer.finish(sumUsage(this.#ends.map((end) => ({ end }))))
  }
}
