/**
 * Finds the original attempt of a request that may be a retry. Attempts in flight are found in the session, ended ones
 * in the store, so that a restarted proxy finds them too. Only requests that may be retries cause a read of the
 * session's turns.
 */
import { getAncestor, getTextsUpTo, type Message } from '../../../../protocol/canonical/conversation.ts'
import { type Annotations, hasCompleteResponse } from '../../../store/port/answered-retries.ts'
import type { OpenTurn, TurnOutline, TurnStore } from '../../../store/port/turn-store.ts'
import type { LiveSession } from '../../state/live-session.ts'
import type { InFlightTurn, RetryInfo } from '../../state/live-turn.ts'
import { isRestorable } from './redelivery.ts'
import { type EarlierAttempt, selectOriginalAttempt } from './select-original-attempt.ts'

/** The parts of a request that are equal in all its attempts. */
type AttemptContent = Pick<OpenTurn, 'dialect' | 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/** The result of {@link findOriginalAttempt}. */
interface AttemptSearchResult {
  /**
   * The attempt that the request repeats, if its response is available: the turn in flight, or the id of the recorded
   * turn.
   */
  first?: { running: InFlightTurn } | { recorded: string }
  /** The idempotency keys of all requests of the session. */
  idempotencyKeys: Set<string>
}

/** Finds the attempt that a request repeats. @throws ProxyError `store_failed` */
export async function findOriginalAttempt(
  store: Pick<TurnStore, 'readOutlines'>,
  session: Pick<LiveSession, 'sessionId' | 'turns'>,
  retryInfo: RetryInfo,
  request: AttemptContent,
): Promise<AttemptSearchResult> {
  const query = new AttemptQuery(request)
  const findMatches = () => session.turns.filter(({ open }) => query.isLike(open))
  for (;;) {
    const before = findMatches()
    const idempotencyKeys = new Set<string>()
    const recorded = await readAttempts(store.readOutlines(session.sessionId), query, idempotencyKeys)
    for (const { retryInfo } of session.turns)
      if (retryInfo.idempotencyKey !== undefined) idempotencyKeys.add(retryInfo.idempotencyKey)
    const running = findMatches()
    // A turn that has ended during the read may be missing from both lists, and one that is about to end cannot be
    // joined. Both are read from the store after their end.
    const [ending] = [
      ...before.filter((each) => !running.includes(each)),
      ...running.filter(({ isEnding }) => isEnding),
    ]
    if (ending !== undefined) {
      await ending.over.catch(() => {})
      continue
    }
    const attempts = [...recorded, ...running.map(toAttempt)].sort((a, b) => a.index - b.index)
    const found = selectOriginalAttempt(retryInfo, attempts)
    if (found === undefined) return { idempotencyKeys }
    const { turnId } = found
    const joined = running.find(({ open }) => open.turnId === turnId)
    return { first: joined ? { running: joined } : { recorded: turnId }, idempotencyKeys }
  }
}

/** Reads the ended attempts of a request. Adds the idempotency keys of all turns to `keys`. */
async function readAttempts(
  outlines: AsyncIterable<TurnOutline>,
  query: AttemptQuery,
  keys: Set<string>,
): Promise<AttemptAtIndex[]> {
  const attempts: AttemptAtIndex[] = []
  let wasRead = false
  for await (const turn of outlines) {
    const { idempotency_key: key } = getAnnotations(turn)
    if (key !== undefined) keys.add(key)
    wasRead ||= attempts.length > 0 && query.isContinuedBy(turn)
    if (turn.status !== 'open' && query.isLike(turn)) attempts.push(fromRecord(turn))
  }
  return wasRead ? attempts.map((each) => ({ ...each, wasRead })) : attempts
}

/** An earlier attempt with its turn index, by which attempts are sorted. */
interface AttemptAtIndex extends EarlierAttempt {
  index: number
}

function getAnnotations({ annotations }: TurnOutline): Annotations {
  return annotations === '{}' ? {} : JSON.parse(annotations)
}

function toAttempt({ open, retryInfo, isDisconnected, answeredRetries }: InFlightTurn): AttemptAtIndex {
  const { turnId, index } = open
  const answeredCount = answeredRetries.at(-1)
  return { ...retryInfo, turnId, index, answeredCount, isDisconnected, response: 'running', wasRead: false }
}

function fromRecord(turn: TurnOutline): AttemptAtIndex {
  const { turnId, index, status, finishReason, error, retryCount } = turn
  const annotations = getAnnotations(turn)
  const isComplete = hasCompleteResponse({ status, finishReason, errorCode: error?.code ?? null })
  return {
    turnId,
    index,
    retryCount,
    answeredCount: annotations.answered_retries?.at(-1),
    idempotencyKey: annotations.idempotency_key,
    nodeMessageId: annotations.node_message,
    response: isComplete && isRestorable(turn) ? 'complete' : 'none',
    isDisconnected: status === 'aborted' || status === 'interrupted',
    wasRead: false,
  }
}

/** The request to which turns are compared. */
class AttemptQuery {
  readonly #request: AttemptContent
  readonly #messages: readonly string[]

  constructor(request: AttemptContent) {
    this.#request = request
    this.#messages = getTextsUpTo(request.lastMessage)
  }

  /** Returns whether a turn has an equal request. */
  isLike(turn: AttemptContent): boolean {
    const { dialect, tools, params, promptPieces } = this.#request
    return (
      turn.dialect === dialect &&
      turn.params === params &&
      turn.tools === tools &&
      this.#hasMessages(turn.lastMessage) &&
      // The same prompt may be split at different positions.
      turn.promptPieces.join('') === promptPieces.join('')
    )
  }

  /** Returns whether a turn's prompt begins with this request's prompt and is longer. */
  isContinuedBy({ lastMessage, promptPieces }: Pick<TurnOutline, 'lastMessage' | 'promptPieces'>): boolean {
    const prompt = this.#request.promptPieces.join('')
    if (this.#messages.length === 0) {
      const longer = promptPieces.join('')
      return longer.length > prompt.length && longer.startsWith(prompt)
    }
    const { length } = this.#messages
    const beginning = getAncestor(lastMessage, length)
    return beginning !== lastMessage && this.#hasMessages(beginning)
  }

  /**
   * Returns whether a turn has equal messages. Compares from the end, because conversations of one session begin with
   * the same messages.
   */
  #hasMessages(last: Message | undefined): boolean {
    if (last !== undefined && last === this.#request.lastMessage) return true
    if ((last?.depth ?? 0) !== this.#messages.length) return false
    for (let message = last; message !== undefined; message = message.parent) {
      if (message.json !== this.#messages[message.depth - 1]) return false
    }
    return true
  }
}
