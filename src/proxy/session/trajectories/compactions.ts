/**
 * Which summaries nobody went on from. An agent that does not like a summary asks for another one; only the one that it works on
 * with has anything to do with the reward.
 */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import { getText } from '../roles/rules/rule.ts'

type CompactionInput = Pick<
  TurnRecord,
  'turnId' | 'status' | 'lastMessage' | 'completionText' | 'annotations'
>

interface SummaryAttempt {
  readonly turnId: string
  /** Of the summary, by which it is known again; empty: too short for that. */
  readonly words: string
  isUsed: boolean
}

/** Characters out of the middle: agents drop tags at both ends. */
const KNOWN_BY = 80
/** Shorter texts may be said by chance. */
const TOO_SHORT = 24

/**
 * Takes all turns of a session, in call order. The attempts at one compaction are the summaries with no answered call of the main
 * line between them. Where the words of one are in what comes next, up to that call, those of which they are not were rejected;
 * where those of none are, nobody knows.
 */
export class Compactions {
  readonly #rejected = new Set<string>()
  #attempts: SummaryAttempt[] = []
  /** What the first attempt was asked. */
  #asked = new Set<Message>()

  add({ turnId, status, lastMessage, completionText, annotations }: CompactionInput, line: AgentRole): void {
    if (!isMainWork(line)) return
    if (this.#attempts.length > 0) this.#lookThrough(lastMessage)
    if (status !== 'completed') return
    if (line === 'main') this.#judge()
    // Several answers to one call are samples, and no attempts.
    else if (!annotations.includes('"choice"')) {
      if (this.#attempts.length === 0) this.#asked = new Set(getMessagesBetween(undefined, lastMessage))
      this.#attempts.push({ turnId, words: extractWords(completionText ?? ''), isUsed: false })
    }
  }

  /** The ids of turns whose summaries were not taken, as far as the calls so far tell. */
  get rejected(): ReadonlySet<string> {
    return this.#rejected
  }

  #lookThrough(last: Message | undefined): void {
    const said = getMessagesBetween(undefined, last, (message) => this.#asked.has(message)).map(({ value }) =>
      plain(getText(value)),
    )
    for (const attempt of this.#attempts)
      attempt.isUsed ||= attempt.words !== '' && said.some((text) => text.includes(attempt.words))
  }

  #judge(): void {
    const isKnown = this.#attempts.some(({ isUsed }) => isUsed)
    for (const { turnId, words, isUsed } of this.#attempts)
      if (isKnown && !isUsed && words !== '') this.#rejected.add(turnId)
    this.#attempts = []
    this.#asked.clear()
  }
}

function extractWords(text: string): string {
  const [, summary = text] = /<summary>([\s\S]*)<\/summary>/.exec(text) ?? []
  const words = plain(summary)
  if (words.length < TOO_SHORT) return ''
  const start = Math.max(0, Math.floor((words.length - KNOWN_BY) / 2))
  return words.slice(start, start + KNOWN_BY).trim()
}

/** Agents lay texts out anew. */
function plain(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}
