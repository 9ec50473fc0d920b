/**
 * The talks of a session's calls as a tree, without what the system says and without tools: both may change mid-way.
 */
import type { Line } from './line.ts'
import type { LinedMessage } from './opening.ts'

/** A message after those before it. */
class TalkNode {
  readonly next = new Map<string, TalkNode>()
  /** The lines of the calls that end here, by who is spoken to: system prompt and tools. */
  readonly lines = new Map<string, Line>()
}

/** A call's way through the tree. */
export interface TalkPath {
  /** One per message. */
  readonly steps: readonly TalkNode[]
  readonly talk: readonly LinedMessage[]
}

export class TalkTree {
  readonly #root = new TalkNode()
  #latest: TalkPath = { steps: [], talk: [] }

  walk(talk: readonly LinedMessage[]): TalkPath {
    const { steps: latest, talk: latestTalk } = this.#latest
    const difference = latestTalk.findIndex((message, place) => message !== talk[place])
    const steps = difference === -1 ? [...latest] : latest.slice(0, difference)
    let at = steps.at(-1) ?? this.#root
    for (const { key } of talk.slice(steps.length)) {
      const next = at.next.get(key) ?? new TalkNode()
      at.next.set(key, next)
      steps.push(next)
      at = next
    }
    this.#latest = { steps, talk }
    return this.#latest
  }

  /** Puts a call's line where it ends. */
  mark({ steps }: TalkPath, spokenTo: string, line: Line): void {
    steps.at(-1)?.lines.set(spokenTo, line)
  }
}

/**
 * The line of the call that this one goes on from: the longest one that is followed by an answer here. If there are
 * several, the one that spoke to the same; else the latest, but no side call, which nobody goes on from with another
 * system prompt.
 */
export function continuedLine({ steps, talk }: TalkPath, spokenTo: string): Line | undefined {
  const place = steps.findLastIndex(
    ({ lines }, position) => lines.size > 0 && talk[position + 1]?.role === 'assistant',
  )
  const lines = steps[place]?.lines
  return lines?.get(spokenTo) ?? [...(lines?.values() ?? [])].findLast((line) => line !== 'side')
}
