/** Finds the turns that retries of clients repeat, to distinguish undelivered responses from samples. */
import { type Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import { type Annotations, readAnsweredRetries } from '../../store/port/answered-retries.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest } from '../matching/message-key.ts'

/** The fields of a turn that identify the attempts of one request. */
export type AttemptTurn = Pick<
  TurnRecord,
  | 'turnId'
  | 'index'
  | 'status'
  | 'startedAtMs'
  | 'endedAtMs'
  | 'retryCount'
  | 'lastMessage'
  | 'tools'
  | 'params'
  | 'promptPieces'
  | 'annotations'
>

/**
 * The maximum length of a text that is compared directly. Longer texts are compared by their digests, because all are
 * retained in memory.
 */
const MAX_KEPT_CHARS = 1024

/** One attempt of a request. */
export interface Attempt {
  readonly turnId: string
  readonly status: TurnRecord['status']
  readonly retryCount: number
  /**
   * The retry count of the last retry that received this attempt's response; the attempts up to that count are
   * answered. Absent: no retry received it.
   */
  readonly answeredCount?: number | undefined
  /** The id of the message in which another node forwarded this attempt. */
  readonly nodeMessageId?: string | undefined
  /** The id of the message in which an earlier attempt was forwarded to a node that crashed before it responded. */
  readonly lostMessageId?: string | undefined
  /** The first index after a crash: a crashed node served the turns before it. Absent: there was no crash. */
  readonly resumedAt?: number | undefined
  /**
   * Returns whether the response may have been lost in a crash of the node that served it.
   * @param resumedAt the first index after the crash
   */
  mayBeLost?(resumedAt: number): boolean
}

/**
 * The attempts of a session's requests. All turns must be added in index order, whatever their status.
 *
 * A retry declares that one earlier attempt of the same request, which it repeats, delivered nothing to its client. If
 * an attempt failed or was aborted, and no other retry repeats it, the retry repeats this attempt, because the client
 * observed the failure. Otherwise one response was lost in transit: the latest one that is possible. All other
 * responses are samples that the agent received.
 *
 * If the owner node of the session crashes before it responds, the node that forwarded the request forwards it again,
 * and names the message of the lost attempt, which delivered nothing.
 *
 * A client that does not send retry counts is assumed to retry in one case: its node crashed after a response, and the
 * first request to the next node is equal.
 */
export class SessionAttempts {
  readonly #requests = new RequestKeys()
  readonly #nodes = new NodeHistory()
  readonly #attempts = new Map<string, Attempt[]>()
  readonly #byTurn = new Map<string, readonly Attempt[]>()

  /** Adds a turn. @returns the attempts of its request so far, of which it is the last */
  add(turn: AttemptTurn): readonly Attempt[] {
    const key = this.#requests.getKey(turn)
    const attempts = this.#attempts.get(key) ?? []
    const { turnId, status, retryCount } = turn
    const answeredCount = readAnsweredRetries(turn).at(-1)
    attempts.push({ turnId, status, retryCount, answeredCount, ...this.#nodes.add(turn) })
    this.#attempts.set(key, attempts)
    this.#byTurn.set(turnId, attempts)
    return attempts
  }

  /**
   * Finds the completed turns whose response never reached the agent.
   * @param wasRead returns whether the agent received the response of a turn, because a later turn continues it
   * @returns the ids of the turns
   */
  findSuperseded(wasRead: (turnId: string) => boolean): Set<string> {
    return findLost(this.#attempts.values(), wasRead)
  }

  /**
   * Finds the turns of {@link findSuperseded} among the latest attempts of some turns' requests, while turns are still
   * being added.
   */
  findSupersededBeside(turnIds: readonly string[], wasRead: (turnId: string) => boolean): Set<string> {
    const requests = new Set(turnIds.map((turnId) => this.#byTurn.get(turnId) ?? []))
    return findLost(
      [...requests].map((attempts) => attempts.slice(-2 * MAX_ATTEMPTS)),
      wasRead,
    )
  }
}

/** Returns the ids of completed attempts that retries repeat and no turn continues. */
function findLost(requests: Iterable<readonly Attempt[]>, wasRead: (turnId: string) => boolean): Set<string> {
  const lost = new Set<string>()
  for (const attempts of requests)
    for (const turn of findRepeated(attempts, wasRead))
      if (turn?.status === 'completed' && !wasRead(turn.turnId)) lost.add(turn.turnId)
  return lost
}

/**
 * Finds the turn that the last attempt repeats.
 * @param attempts the attempts of one request, in index order
 * @returns the id of the turn; undefined if the last attempt is no retry, or repeats no recorded attempt
 */
export function findRepeatedByLast(
  attempts: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): string | undefined {
  // The earlier half determines which attempts other retries repeat.
  const latest = attempts.slice(-2 * MAX_ATTEMPTS)
  const last = latest.at(-1)
  return last !== undefined && isRetry(last) ? findRepeated(latest, wasRead).at(-1)?.turnId : undefined
}

/**
 * The maximum number of attempts that are searched for a retry. Clients retry a few times; if one marks all its
 * requests as retries, only the latest attempts count.
 */
const MAX_ATTEMPTS = 64

/**
 * Returns for each retry the earlier attempt that it repeats, which no other retry repeats; undefined: it is not
 * recorded.
 */
function findRepeated(
  attempts: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): (Attempt | undefined)[] {
  if (!attempts.some(isRetry)) return []
  const repeated = new Set<Attempt>()
  return attempts.flatMap((retry, index) => {
    if (!isRetry(retry)) return []
    const before = attempts
      .slice(Math.max(0, index - MAX_ATTEMPTS), index)
      .filter((turn) => !repeated.has(turn))
    const earlier = before.filter((turn) => isEarlierAttempt(turn, retry))
    const first =
      before.findLast(({ nodeMessageId: id }) => id !== undefined && id === retry.lostMessageId) ??
      findLatestAttempt(earlier.filter(({ status }) => status !== 'completed')) ??
      findLatestAttempt(earlier.filter(({ status, turnId }) => status === 'completed' && !wasRead(turnId)))
    if (first !== undefined) repeated.add(first)
    return [first]
  })
}

/** Returns whether a client or a node declared a retry, or a client may have retried without declaring it. */
function isRetry({ retryCount, resumedAt, lostMessageId }: Attempt): boolean {
  return retryCount > 0 || lostMessageId !== undefined || resumedAt !== undefined
}

/** Returns whether a retry may repeat an attempt. */
function isEarlierAttempt(turn: Attempt, { retryCount, resumedAt = 0 }: Attempt): boolean {
  if (retryCount > 0) return (turn.answeredCount ?? turn.retryCount) < retryCount
  // A response that a later attempt received was not lost.
  return turn.answeredCount === undefined && (turn.mayBeLost?.(resumedAt) ?? false)
}

/** Returns the attempt with the highest retry count, the last of several. */
function findLatestAttempt(attempts: readonly Attempt[]): Attempt | undefined {
  const highest = Math.max(...attempts.map(({ retryCount }) => retryCount))
  return attempts.findLast(({ retryCount }) => retryCount === highest)
}

/**
 * The start of the last request to each node that served the session. A node is identified by the index of its first
 * turn: after a crash, all turns of the next node have this index in their annotations; after an orderly transfer they
 * do not, so that the two nodes count as one.
 */
class NodeHistory {
  readonly #lastStarts = new Map<number, number>()
  /** The index that identifies the current node. */
  #node = 0

  add(turn: AttemptTurn): Pick<Attempt, 'nodeMessageId' | 'lostMessageId' | 'resumedAt' | 'mayBeLost'> {
    const { index, startedAtMs, endedAtMs, status } = turn
    const { resumed_at: resumedAt, node_message, lost_message } = readNodeAnnotations(turn)
    const node = resumedAt ?? this.#node
    this.#node = node
    const isClosed = status !== 'open' && status !== 'interrupted'
    // The owner node of an interrupted turn is unknown.
    if (isClosed) this.#lastStarts.set(node, Math.max(this.#lastStarts.get(node) ?? 0, startedAtMs))
    // A later request to the node usually comes from a client that received this response.
    const isLatest = () => !isClosed || (endedAtMs ?? 0) >= this.#lastStarts.get(node)!
    return {
      nodeMessageId: node_message,
      lostMessageId: lost_message,
      resumedAt,
      mayBeLost: (followedAt) => index < followedAt && isLatest(),
    }
  }
}

function readNodeAnnotations({ annotations }: AttemptTurn): Annotations & { resumed_at?: number } {
  // Parsing the annotations of all turns would take longer than reading the turns.
  return NODE_ANNOTATION.test(annotations) ? JSON.parse(annotations) : {}
}

const NODE_ANNOTATION = /"(?:resumed_at|node_message|lost_message)"/

/** The keys of one session's requests, which are equal for equal requests. */
class RequestKeys {
  readonly #ids = new Map<Message, number>()
  readonly #prompts = new MessageTree()

  getKey({ lastMessage, promptPieces, tools, params }: AttemptTurn): string {
    // A request has either messages or a prompt.
    const last = lastMessage ?? this.#prompts.addMessageTexts(promptPieces)
    return `${last === undefined ? 0 : this.#getId(last)} ${digestLongText(tools ?? '')} ${digestLongText(params)}`
  }

  #getId(last: Message): number {
    const id = this.#ids.get(last) ?? this.#ids.size + 1
    this.#ids.set(last, id)
    return id
  }
}

function digestLongText(text: string): string {
  return text.length <= MAX_KEPT_CHARS ? text : computeDigest(text)
}
