/**
 * Calls that a worker began for a proxy that was killed, and offers to the one that was started in its place. Their answers
 * come in here, within the window of each, for agents that try again: one of them gets an answer, and nobody else ever
 * does. For the others they are dropped after a while.
 */

import type { Clock } from '../../base/clock.ts'
import { ProxyError } from '../../base/errors.ts'
import type { GenerationRequest } from '../../protocol/canonical/request.ts'
import type { RelayCall } from './relay-call.ts'

export interface OfferedCall {
  request_id: string
  by_ids: boolean
}

interface KeptCall {
  call: RelayCall
  byIds: boolean
  cancelDrop: () => void
}

export class KeptCalls {
  readonly #clock: Clock
  /** By the turn that they were begun for. */
  readonly #calls = new Map<string, KeptCall>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** @param keepMs for how long, if nobody asks for it */
  keep({ request_id: requestId, by_ids: byIds }: OfferedCall, call: RelayCall, keepMs: number): void {
    const turnId = turnOf(requestId)
    this.#drop(turnId)
    const cancelDrop = this.#clock.after(keepMs, () => this.#drop(turnId))
    this.#calls.set(turnId, { call, byIds, cancelDrop })
  }

  has(turnId: string): boolean {
    return this.#calls.has(turnId)
  }

  /**
   * Hands a call over, once.
   * @returns undefined where there is none, or one that was asked in another way: what an engine samples after token ids is
   *   raw, and what it samples after messages is not
   */
  take(request: GenerationRequest): RelayCall | undefined {
    const { takesOver: turnId } = request
    const kept = turnId === undefined ? undefined : this.#calls.get(turnId)
    if (turnId === undefined || kept === undefined) return undefined
    if (kept.byIds !== (request.kind === 'chat' && request.promptTokenIds !== undefined)) {
      this.#drop(turnId)
      return undefined
    }
    kept.cancelDrop()
    this.#calls.delete(turnId)
    return kept.call
  }

  dropAll(): void {
    for (const turnId of [...this.#calls.keys()]) this.#drop(turnId)
  }

  #drop(turnId: string): void {
    const kept = this.#calls.get(turnId)
    this.#calls.delete(turnId)
    kept?.cancelDrop()
    kept?.call.fail(new ProxyError('agent_gone', 'no agent came back for this call'))
  }
}

/** A request's id on the wire is its turn's, with the number of the attempt from the second on. */
function turnOf(requestId: string): string {
  return requestId.replace(/\.\d+$/, '')
}
