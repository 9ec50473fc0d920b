/**
 * Finds rejected compactions. An agent that rejects a summary requests another one, and only the summary with which it
 * continues affects the reward.
 */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import { getText } from '../roles/rules/rule.ts'

/** A turn that sampled a summary. */
interface SummaryAttempt {
  readonly turnId: string
  /** The excerpt that identifies the summary in later messages; empty if the summary is too short. */
  readonly words: string
  /** Whether a later message contains the excerpt. */
  isUsed: boolean
}

/** The length of an excerpt. It is taken from the middle of the summary, because agents drop tags at both ends. */
const EXCERPT_CHARS = 80
/**
 * The number of newest attempts for whose excerpts a message is searched: agents give up after a few attempts, and a
 * request may have megabytes of messages.
 */
const MAX_SEARCHED = 64
/** The minimum length of a summary that can be identified: shorter texts may occur by chance. */
const MIN_SUMMARY_CHARS = 24

/**
 * The rejected compactions of a session, whose turns must be added in index order. The attempts at one compaction are
 * the summaries without a completed main turn between them. If the following messages, up to the next main turn,
 * contain the excerpt of an attempt, the attempts whose excerpt they do not contain were rejected. If they contain no
 * excerpt, the outcome is unknown.
 */
export class CompactionRejections {
  readonly #rejected = new Set<string>()
  #attempts: SummaryAttempt[] = []
  /** The messages of the first attempt's request. */
  #requestMessages = new Set<Message>()
  /** The number of attempts for whose excerpts each later message was searched. */
  readonly #searched = new Map<Message, number>()

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
    if (this.#attempts.length > 0) this.#markUsed(lastMessage)
    if (status !== 'completed') return
    if (line === 'main') this.#judge()
    // The choices of one request are samples, not attempts.
    else if (!annotations.includes('"choice"')) {
      if (this.#attempts.length === 0)
        this.#requestMessages = new Set(getMessagesBetween(undefined, lastMessage))
      this.#attempts.push({ turnId, words: extractExcerpt(completionText ?? ''), isUsed: false })
    }
  }

  /** The ids of turns whose summaries were rejected, according to the turns so far. */
  get rejected(): ReadonlySet<string> {
    return this.#rejected
  }

  /** Marks the attempts whose excerpts occur in messages that the first attempt's request did not have. */
  #markUsed(last: Message | undefined): void {
    const count = this.#attempts.length
    for (const message of getMessagesBetween(undefined, last, (known) => this.#requestMessages.has(known))) {
      const from = Math.max(this.#searched.get(message) ?? 0, count - MAX_SEARCHED)
      this.#searched.set(message, count)
      const attempts = this.#attempts.slice(from).filter(({ words, isUsed }) => words !== '' && !isUsed)
      if (attempts.length === 0) continue
      const text = collapseSpace(getText(message.value))
      for (const attempt of attempts) attempt.isUsed = text.includes(attempt.words)
    }
  }

  /** Determines which attempts were rejected, at the next completed main turn. */
  #judge(): void {
    const isKnown = this.#attempts.some(({ isUsed }) => isUsed)
    for (const { turnId, words, isUsed } of this.#attempts)
      if (isKnown && !isUsed && words !== '') this.#rejected.add(turnId)
    this.#attempts = []
    this.#requestMessages.clear()
    this.#searched.clear()
  }
}

/** Returns the excerpt of a summary; empty if the summary is too short. */
function extractExcerpt(text: string): string {
  const words = collapseSpace(getTaggedSummary(text) ?? text)
  if (words.length < MIN_SUMMARY_CHARS) return ''
  const start = Math.max(0, Math.floor((words.length - EXCERPT_CHARS) / 2))
  return words.slice(start, start + EXCERPT_CHARS).trim()
}

/** Returns the text between the summary tags, which a pattern would find in quadratic time. */
function getTaggedSummary(text: string): string | undefined {
  const start = text.indexOf('<summary>') + '<summary>'.length
  const end = text.lastIndexOf('</summary>')
  return start >= '<summary>'.length && end >= start ? text.slice(start, end) : undefined
}

/** Collapses white space, because agents reformat texts. */
function collapseSpace(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}
