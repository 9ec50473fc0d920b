/**
 * First tries of calls whose clients may try again. Those that run are kept here; those that have ended are on record,
 * so that a proxy which was started anew finds them as well. Only a retry costs anything: it reads its session's turns.
 */
import { beginningOf, type Message, textsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { type Annotations, hasWholeAnswer } from '../../../store/port/answered-retries.ts'
import type { OpenTurn, TurnOutline, TurnStore } from '../../../store/port/turn-store.ts'
import { type EarlierTry, firstTryOf, type TryWord } from './first-try.ts'
import { isRestorable } from './recorded-answer.ts'

/** What two tries of one call have in common. */
export type TriedRequest = Pick<OpenTurn, 'dialect' | 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/** A try whose answer is under way. */
export interface RunningTry extends TryWord {
  readonly turnId: string
  readonly index: number
  readonly request: TriedRequest
  /** Its agent's connection has broken. */
  readonly isLost: boolean
  /** Its answer is about to be committed: it is too late to join. */
  readonly isEnding: boolean
  /** Of the retries that joined it. */
  readonly answeredRetries: readonly number[]
  /** Settles when the turn is over. */
  readonly over: Promise<unknown>
}

export interface Found<R> {
  /** The try that a retry asks for again, if its answer can be had. */
  first?: { running: R } | { recorded: string }
  /** Of all calls of the session. */
  idempotencyKeys: Set<string>
}

export class FirstTries<R extends RunningTry> {
  readonly #store: Pick<TurnStore, 'readOutlines'>
  readonly #running = new Map<string, Set<R>>()
  /** Calls with a name that are about to run, the latest of each. */
  readonly #beginning = new Map<string, Promise<void>>()

  constructor(store: Pick<TurnStore, 'readOutlines'>) {
    this.#store = store
  }

  /**
   * Two tries of one call may come at once: the later one waits until the earlier one is among those that run.
   * @returns to be disposed of then
   */
  async inTurn(sessionId: string, idempotencyKey: string): Promise<Disposable> {
    const name = JSON.stringify([sessionId, idempotencyKey])
    const before = this.#beginning.get(name)
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#beginning.set(name, promise)
    await before
    return {
      [Symbol.dispose]: () => {
        if (this.#beginning.get(name) === promise) this.#beginning.delete(name)
        resolve()
      },
    }
  }

  /** Until it is over. */
  add(sessionId: string, running: R): void {
    const all = this.#running.get(sessionId) ?? new Set()
    this.#running.set(sessionId, all.add(running))
    const over = () => {
      all.delete(running)
      if (all.size === 0 && this.#running.get(sessionId) === all) this.#running.delete(sessionId)
    }
    running.over.then(over, over)
  }

  /** How many of a session go on although their agents are away. */
  awayIn(sessionId: string): number {
    return [...(this.#running.get(sessionId) ?? [])].filter(({ isLost }) => isLost).length
  }

  async find(sessionId: string, word: TryWord, request: TriedRequest): Promise<Found<R>> {
    const wanted = new Wanted(request)
    for (;;) {
      const before = this.#alike(sessionId, wanted)
      const idempotencyKeys = new Set<string>()
      const recorded = await this.#recorded(sessionId, wanted, idempotencyKeys)
      for (const { idempotencyKey } of this.#running.get(sessionId) ?? [])
        if (idempotencyKey !== undefined) idempotencyKeys.add(idempotencyKey)
      const running = this.#alike(sessionId, wanted)
      // One that has ended meanwhile is in neither list, and one that is about to can only be read.
      const [ending] = [...before.filter((each) => !running.includes(each)), ...running.filter(isEnding)]
      if (ending !== undefined) {
        await ending.over.catch(() => {})
        continue
      }
      const tries = [...recorded, ...running.map(asTry)].sort((a, b) => a.index - b.index)
      const found = firstTryOf(word, tries)
      if (found === undefined) return { idempotencyKeys }
      const { turnId } = found
      const joined = running.find((each) => each.turnId === turnId)
      return { first: joined ? { running: joined } : { recorded: turnId }, idempotencyKeys }
    }
  }

  #alike(sessionId: string, wanted: Wanted): R[] {
    return [...(this.#running.get(sessionId) ?? [])].filter(({ request }) => wanted.isLike(request))
  }

  async #recorded(sessionId: string, wanted: Wanted, keys: Set<string>): Promise<PlacedTry[]> {
    const tries: PlacedTry[] = []
    let wasRead = false
    for await (const turn of this.#store.readOutlines(sessionId)) {
      const { idempotency_key: key } = annotationsOf(turn)
      if (key !== undefined) keys.add(key)
      wasRead ||= tries.length > 0 && wanted.isContinuedBy(turn)
      if (turn.status !== 'open' && wanted.isLike(turn)) tries.push(fromRecord(turn))
    }
    return wasRead ? tries.map((each) => ({ ...each, wasRead })) : tries
  }
}

interface PlacedTry extends EarlierTry {
  index: number
}

function annotationsOf({ annotations }: TurnOutline): Annotations {
  return annotations === '{}' ? {} : JSON.parse(annotations)
}

function isEnding({ isEnding }: RunningTry): boolean {
  return isEnding
}

function asTry(running: RunningTry): PlacedTry {
  const { turnId, index, retryCount, idempotencyKey, isLost, answeredRetries } = running
  const answeredCount = answeredRetries.at(-1)
  return {
    turnId,
    index,
    retryCount,
    answeredCount,
    idempotencyKey,
    isLost,
    answer: 'running',
    wasRead: false,
  }
}

function fromRecord(turn: TurnOutline): PlacedTry {
  const { turnId, index, status, finishReason, error, retryCount } = turn
  const annotations = annotationsOf(turn)
  const isWhole = hasWholeAnswer({ status, finishReason, errorCode: error?.code ?? null })
  return {
    turnId,
    index,
    retryCount,
    answeredCount: annotations.answered_retries?.at(-1),
    idempotencyKey: annotations.idempotency_key,
    answer: isWhole && isRestorable(turn) ? 'whole' : 'none',
    isLost: status === 'aborted' || status === 'interrupted',
    wasRead: false,
  }
}

/** A request that others are compared with. */
class Wanted {
  readonly #request: TriedRequest
  readonly #messages: readonly string[]

  constructor(request: TriedRequest) {
    this.#request = request
    this.#messages = textsUpTo(request.lastMessage)
  }

  isLike(turn: TriedRequest): boolean {
    const { dialect, tools, params, promptPieces } = this.#request
    return (
      turn.dialect === dialect &&
      turn.params === params &&
      turn.tools === tools &&
      this.#hasMessages(turn.lastMessage) &&
      // Cut at other places they are the same prompt.
      turn.promptPieces.join('') === promptPieces.join('')
    )
  }

  /** Whether the prompt of a turn begins with this one, and goes on. */
  isContinuedBy({ lastMessage, promptPieces }: Pick<TurnOutline, 'lastMessage' | 'promptPieces'>): boolean {
    const prompt = this.#request.promptPieces.join('')
    if (this.#messages.length === 0) {
      const longer = promptPieces.join('')
      return longer.length > prompt.length && longer.startsWith(prompt)
    }
    const { length } = this.#messages
    const beginning = beginningOf(lastMessage, length)
    return beginning !== lastMessage && this.#hasMessages(beginning)
  }

  /** From the end: histories of one session begin alike. */
  #hasMessages(last: Message | undefined): boolean {
    if (last !== undefined && last === this.#request.lastMessage) return true
    if ((last?.depth ?? 0) !== this.#messages.length) return false
    for (let at = last; at !== undefined; at = at.parent) {
      if (at.json !== this.#messages[at.depth - 1]) return false
    }
    return true
  }
}
