/** Finds the turns that a client's retries repeat, to distinguish undelivered responses from samples. */
import { type Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import { type Annotations, readAnsweredRetries } from '../../store/port/answered-retries.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest } from '../matching/message-key.ts'

/** The parts of a turn that identify attempts of one request. */
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

/** Longer texts are compared by their digest, because all of them are kept in memory. */
const MAX_KEPT_CHARS = 1024

export interface Attempt {
  readonly turnId: string
  readonly status: TurnRecord['status']
  readonly retryCount: number
  /**
   * Count of the last retry that received this attempt's response; that retry and those before it delivered a response.
   */
  readonly answeredCount?: number | undefined
  /** The id of the message in which another node forwarded the request. */
  readonly nodeMessageId?: string | undefined
  /** The id of the message in which the request was sent to a node that was lost before it responded. */
  readonly lostMessageId?: string | undefined
  /** Turns below this index were served by a crashed node. Absent: there was no fail-over. */
  readonly resumedAt?: number | undefined
  /** Returns whether its response may have been lost with its node, which another node followed at this index. */
  mayBeLost?(resumedAt: number): boolean
}

/**
 * Receives all turns of a session in index order, whatever their status.
 *
 * A retry states that one earlier attempt of the same request delivered nothing to its client. If an attempt failed or
 * was aborted and no other retry accounts for it, it is that one, because the client observed the failure. Otherwise
 * exactly one response was lost in transit: the latest that is possible. The others are samples that the agent
 * received.
 *
 * A node that repeats a request, because the owner of the session was lost before its response began, names the message
 * in which it sent it before: that attempt delivered nothing.
 *
 * A client that does not send retry counts is assumed to retry in one case: its node crashed after a response, and the
 * first request to the next node is identical.
 */
export class Retries {
  readonly #requests = new RequestKeys()
  readonly #lives = new NodeHistory()
  readonly #tries = new Map<string, Attempt[]>()

  /** @returns the attempts of the turn's request so far, this one last */
  add(turn: AttemptTurn): readonly Attempt[] {
    const key = this.#requests.getKey(turn)
    const tries = this.#tries.get(key) ?? []
    const { turnId, status, retryCount } = turn
    const answeredCount = readAnsweredRetries(turn).at(-1)
    tries.push({ turnId, status, retryCount, answeredCount, ...this.#lives.add(turn) })
    this.#tries.set(key, tries)
    return tries
  }

  /**
   * @param wasRead returns whether the agent received the response of a completed turn, because a later turn continues
   * it
   * @returns the ids of turns whose response never reached the agent
   */
  findSuperseded(wasRead: (turnId: string) => boolean): Set<string> {
    const superseded = new Set<string>()
    for (const tries of this.#tries.values()) {
      for (const turn of findRepeated(tries, wasRead))
        if (turn?.status === 'completed') superseded.add(turn.turnId)
    }
    return superseded
  }
}

/**
 * @param tries attempts of one request, in index order
 * @returns the turn that the last one repeats, if it is a retry
 */
export function findRepeatedByLast(
  tries: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): string | undefined {
  // The earlier half determines which attempts other retries already account for.
  const latest = tries.slice(-2 * MAX_TRIES)
  const last = latest.at(-1)
  return last !== undefined && isRetry(last) ? findRepeated(latest, wasRead).at(-1)?.turnId : undefined
}

/**
 * Number of attempts that are searched: clients retry a few times. If a client marks requests as retries without end,
 * only the latest attempts count.
 */
const MAX_TRIES = 64

/**
 * Returns for each retry the earlier attempt that it repeats and that no other retry repeats; undefined: not recorded.
 */
function findRepeated(
  tries: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): (Attempt | undefined)[] {
  if (!tries.some(isRetry)) return []
  const spokenFor = new Set<Attempt>()
  return tries.flatMap((retry, index) => {
    if (!isRetry(retry)) return []
    const before = tries.slice(Math.max(0, index - MAX_TRIES), index).filter((turn) => !spokenFor.has(turn))
    const earlier = before.filter((turn) => isEarlierAttempt(turn, retry))
    const first =
      before.findLast(({ nodeMessageId: id }) => id !== undefined && id === retry.lostMessageId) ??
      findLatestAttempt(earlier.filter(({ status }) => status !== 'completed')) ??
      findLatestAttempt(earlier.filter(({ status, turnId }) => status === 'completed' && !wasRead(turnId)))
    if (first !== undefined) spokenFor.add(first)
    return [first]
  })
}

/** Returns whether the client or a node declared a retry, or the client may have retried without declaring it. */
function isRetry({ retryCount, resumedAt, lostMessageId }: Attempt): boolean {
  return retryCount > 0 || lostMessageId !== undefined || resumedAt !== undefined
}

function isEarlierAttempt(turn: Attempt, { retryCount, resumedAt = 0 }: Attempt): boolean {
  if (retryCount > 0) return (turn.answeredCount ?? turn.retryCount) < retryCount
  // A response that a later request received was not lost.
  return turn.answeredCount === undefined && (turn.mayBeLost?.(resumedAt) ?? false)
}

/** Returns the attempt with the highest count, the last of several. */
function findLatestAttempt(tries: readonly Attempt[]): Attempt | undefined {
  const highest = Math.max(...tries.map(({ retryCount }) => retryCount))
  return tries.findLast(({ retryCount }) => retryCount === highest)
}

/**
 * The time of the last request to each node that served the session. After a crash, all turns of the next node carry
 * the index at which it recovered; after an orderly transfer, they do not.
 */
class NodeHistory {
  readonly #lastStarts = new Map<number, number>()
  #life = 0

  add(turn: AttemptTurn): Pick<Attempt, 'nodeMessageId' | 'lostMessageId' | 'resumedAt' | 'mayBeLost'> {
    const { index, startedAtMs, endedAtMs, status } = turn
    const { resumed_at: resumedAt, node_message, lost_message } = readNodeAnnotations(turn)
    const life = resumedAt ?? this.#life
    this.#life = life
    const isClosed = status !== 'open' && status !== 'interrupted'
    // An interrupted turn has no known owner node.
    if (isClosed) this.#lastStarts.set(life, Math.max(this.#lastStarts.get(life) ?? 0, startedAtMs))
    // Requests after the end of this turn usually come from a client that received its response.
    const isLatest = () => !isClosed || (endedAtMs ?? 0) >= this.#lastStarts.get(life)!
    return {
      nodeMessageId: node_message,
      lostMessageId: lost_message,
      resumedAt,
      mayBeLost: (followedAt) => index < followedAt && isLatest(),
    }
  }
}

function readNodeAnnotations({ annotations }: AttemptTurn): Annotations & { resumed_at?: number } {
  // Parsing the annotations of all turns would cost more than reading the turns.
  return NODE_ANNOTATION.test(annotations) ? JSON.parse(annotations) : {}
}

const NODE_ANNOTATION = /"(?:resumed_at|node_message|lost_message)"/

/** Assigns equal keys to equal requests of one session. */
class RequestKeys {
  readonly #ids = new Map<Message, number>()
  readonly #prompts = new MessageTree()

  getKey({ lastMessage, promptPieces, tools, params }: AttemptTurn): string {
    // A request has one of the two.
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
