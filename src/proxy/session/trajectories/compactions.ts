/**
 * Finds rejected summaries. An agent that rejects a summary requests another one; only the summary that it continues
 * with affects the reward.
 */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import { getText } from '../roles/rules/rule.ts'

interface SummaryAttempt {
  readonly turnId: string
  /** Excerpt that identifies the summary in later messages; empty if the summary is too short. */
  readonly words: string
  isUsed: boolean
}

/** Length of the excerpt. It is taken from the middle, because agents drop tags at both ends. */
const KNOWN_BY = 80
/** Shorter texts may occur by chance. */
const TOO_SHORT = 24

/**
 * Receives all turns of a session in order. The attempts at one compaction are the summaries without a completed main
 * turn between them. If the following messages, up to that turn, contain the excerpt of an attempt, the attempts whose
 * excerpt they do not contain were rejected. If they contain no excerpt, the outcome is unknown.
 */
export class Compactions {
  readonly #rejected = new Set<string>()
  #attempts: SummaryAttempt[] = []
  /** The messages of the first attempt's request. */
  #requestMessages = new Set<Message>()

  add(
    {
      turnId,
      status,
      lastMessage,
      completionText,
      annotations,
    }: Pick<TurnRecord, 'turnId' | 'status' | 'lastMessage' | 'completionText' | 'annotations'>,
    line: AgentRole,
  ): void {
    if (!isMainWork(line)) return
    if (this.#attempts.length > 0) this.#lookThrough(lastMessage)
    if (status !== 'completed') return
    if (line === 'main') this.#judge()
    // Several completions of one request are samples, not attempts.
    else if (!annotations.includes('"choice"')) {
      if (this.#attempts.length === 0)
        this.#requestMessages = new Set(getMessagesBetween(undefined, lastMessage))
      this.#attempts.push({ turnId, words: extractWords(completionText ?? ''), isUsed: false })
    }
  }

  /** The ids of turns whose summaries were rejected, according to the turns so far. */
  get rejected(): ReadonlySet<string> {
    return this.#rejected
  }

  #lookThrough(last: Message | undefined): void {
    const texts = getMessagesBetween(undefined, last, (message) => this.#requestMessages.has(message)).map(
      ({ value }) => collapseSpace(getText(value)),
    )
    for (const attempt of this.#attempts)
      attempt.isUsed ||= attempt.words !== '' && texts.some((text) => text.includes(attempt.words))
  }

  #judge(): void {
    const isKnown = this.#attempts.some(({ isUsed }) => isUsed)
    for (const { turnId, words, isUsed } of this.#attempts)
      if (isKnown && !isUsed && words !== '') this.#rejected.add(turnId)
    this.#attempts = []
    this.#requestMessages.clear()
  }
}

function extractWords(text: string): string {
  const [, summary = text] = /<summary>([\s\S]*)<\/summary>/.exec(text) ?? []
  const words = collapseSpace(summary)
  if (words.length < TOO_SHORT) return ''
  const start = Math.max(0, Math.floor((words.length - KNOWN_BY) / 2))
  return words.slice(start, start + KNOWN_BY).trim()
}

/** Collapses white space, because agents reformat texts. */
function collapseSpace(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}
