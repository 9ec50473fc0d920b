/**
 * Which turns a client's retries repeat, so that an answer that never reached its agent is kept apart from a sample.
 */
import { type Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import { answeredRetriesOf } from '../../store/port/answered-retries.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest } from '../matching/message-key.ts'

/** What of a turn tells whether it is a try of the same call as another one. */
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

/** Longer texts are compared by their digest: they would all be kept in memory. */
const MAX_KEPT_CHARS = 1024

export interface Attempt {
  readonly turnId: string
  readonly status: TurnRecord['status']
  readonly retryCount: number
  /** Of the last retry that was given this try's answer: it and those before it brought their client something. */
  readonly answeredCount?: number | undefined
  /** Turns below this index were answered by a proxy that was lost. Absent: all by the one that lives. */
  readonly resumedAt?: number | undefined
  /** Whether its answer may have been lost with its proxy, which another one followed at this index. Absent: it was not. */
  mayBeLost?(resumedAt: number): boolean
}

/**
 * Takes all turns of a session, in call order and whatever their status.
 *
 * A retry says that one earlier try of the very same request brought its client nothing. That is a try that failed or
 * was aborted, where there is one that no other retry has spoken for: the client knows of it. Only where there is none
 * was an answer lost on its way, and it was one answer: the latest that can be it. The others are samples that the
 * agent has read.
 *
 * A client that does not tell its tries is believed in one case: its proxy was lost after an answer, and the first that the
 * next proxy was asked is the same again.
 */
export class Retries {
  readonly #requests = new RequestKeys()
  readonly #lives = new NodeHistory()
  readonly #tries = new Map<string, Attempt[]>()

  /** @returns the tries of the turn's request so far, this one the last */
  add(turn: AttemptTurn): readonly Attempt[] {
    const key = this.#requests.getKey(turn)
    const tries = this.#tries.get(key) ?? []
    const { turnId, status, retryCount } = turn
    const answeredCount = answeredRetriesOf(turn).at(-1)
    tries.push({ turnId, status, retryCount, answeredCount, ...this.#lives.add(turn) })
    this.#tries.set(key, tries)
    return tries
  }

  /**
   * @param wasRead whether the agent has read the answer of a completed turn, because something goes on from it
   * @returns the ids of turns whose answer never reached the agent
   */
  ghosts(wasRead: (turnId: string) => boolean): Set<string> {
    const ghosts = new Set<string>()
    for (const tries of this.#tries.values()) {
      for (const turn of findRepeated(tries, wasRead))
        if (turn?.status === 'completed') ghosts.add(turn.turnId)
    }
    return ghosts
  }
}

/** @param tries of one request, in call order @returns what the last one repeats, if it is a retry */
export function findRepeatedByLast(
  tries: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): string | undefined {
  // Which of them have been spoken for, the tries before tell.
  const latest = tries.slice(-2 * MAX_TRIES)
  const last = latest.at(-1)
  return last !== undefined && isRetry(last) ? findRepeated(latest, wasRead).at(-1)?.turnId : undefined
}

/** A client tries a call some times. Of a request that was marked as a retry without end, the latest tries count. */
const MAX_TRIES = 64

/** For each retry the earlier try that it repeats, which no other retry repeats; undefined: it is not on record. */
function findRepeated(
  tries: readonly Attempt[],
  wasRead: (turnId: string) => boolean,
): (Attempt | undefined)[] {
  if (!tries.some(isRetry)) return []
  const spokenFor = new Set<Attempt>()
  return tries.flatMap((retry, place) => {
    if (!isRetry(retry)) return []
    const before = tries.slice(Math.max(0, place - MAX_TRIES), place).filter((turn) => !spokenFor.has(turn))
    const earlier = before.filter((turn) => isEarlierAttempt(turn, retry))
    const first =
      findLatestAttempt(earlier.filter(({ status }) => status !== 'completed')) ??
      findLatestAttempt(earlier.filter(({ status, turnId }) => status === 'completed' && !wasRead(turnId)))
    if (first !== undefined) spokenFor.add(first)
    return [first]
  })
}

/** It says so, or it may be one of a client that does not tell. */
function isRetry({ retryCount, resumedAt }: Attempt): boolean {
  return retryCount > 0 || resumedAt !== undefined
}

function isEarlierAttempt(turn: Attempt, { retryCount, resumedAt = 0 }: Attempt): boolean {
  if (retryCount > 0) return (turn.answeredCount ?? turn.retryCount) < retryCount
  return turn.mayBeLost?.(resumedAt) ?? false
}

/** Of the highest count; of several the last. */
function findLatestAttempt(tries: readonly Attempt[]): Attempt | undefined {
  const highest = Math.max(...tries.map(({ retryCount }) => retryCount))
  return tries.findLast(({ retryCount }) => retryCount === highest)
}

/**
 * What each proxy that the session had was asked last. Of one that took it over from one that was lost, all turns say where; it
 * may have handed it over in order, and the turns of the next one say nothing.
 */
class NodeHistory {
  readonly #lastStarts = new Map<number, number>()
  #life = 0

  add(turn: AttemptTurn): Pick<Attempt, 'resumedAt' | 'mayBeLost'> {
    const { index, startedAtMs, endedAtMs, status, annotations } = turn
    const resumedAt = readRecoveredAtIndex(annotations)
    const life = resumedAt ?? this.#life
    this.#life = life
    const isClosed = status !== 'open' && status !== 'interrupted'
    // Nobody has said of a turn that nobody closed whose it was.
    if (isClosed) this.#lastStarts.set(life, Math.max(this.#lastStarts.get(life) ?? 0, startedAtMs))
    // What the proxy was asked after its end, it was asked by who had the answer, as a rule.
    const isLatest = () => !isClosed || (endedAtMs ?? 0) >= this.#lastStarts.get(life)!
    return { resumedAt, mayBeLost: (followedAt) => index < followedAt && isLatest() }
  }
}

function readRecoveredAtIndex(annotations: string): number | undefined {
  // Few have it, and parsing all costs more than reading them.
  if (!annotations.includes('"resumed_at"')) return undefined
  return (JSON.parse(annotations) as { resumed_at?: number }).resumed_at
}

/** Equal requests of one reading have equal keys. */
class RequestKeys {
  readonly #ids = new Map<Message, number>()
  readonly #prompts = new MessageTree()

  getKey({ lastMessage, promptPieces, tools, params }: AttemptTurn): string {
    // A request has either of the two.
    const last = lastMessage ?? this.#prompts.addMessageTexts(promptPieces)
    return `${last === undefined ? 0 : this.#getId(last)} ${short(tools ?? '')} ${short(params)}`
  }

  #getId(last: Message): number {
    const id = this.#ids.get(last) ?? this.#ids.size + 1
    this.#ids.set(last, id)
    return id
  }
}

function short(text: string): string {
  return text.length <= MAX_KEPT_CHARS ? text : computeDigest(text)
}
