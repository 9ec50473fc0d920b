/** Agent requests without HTTP: each has a reference to its session until its turn has started. */
import type { Sessions } from '../../src/proxy/session/state/sessions.ts'
import type { TurnAllocation } from '../../src/proxy/session/state/turn-allocation.ts'
import { beginChoices, type ChoicesHandle } from '../../src/proxy/session/turn/run-choices.ts'
import type { AgentRequest, ResponseHandle, TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'

/** An agent's request that names its session. */
export type SessionRequest = Omit<AgentRequest, 'session'> & { sessionId: string }

/** A turn runner that acquires the session of a request by its id. */
export class SessionTurnRunner {
  readonly turnRunner: TurnRunner
  readonly #sessions: Sessions

  constructor(runner: TurnRunner, sessions: Sessions) {
    this.turnRunner = runner
    this.#sessions = sessions
  }

  async begin({ sessionId, ...request }: SessionRequest, gone: AbortSignal): Promise<ResponseHandle> {
    using session = this.#sessions.acquire(sessionId)
    return await this.turnRunner.begin({ ...request, session }, gone)
  }

  async beginChoices(
    { sessionId, ...request }: SessionRequest,
    count: number,
    gone: AbortSignal,
  ): Promise<ChoicesHandle> {
    using session = this.#sessions.acquire(sessionId)
    return await beginChoices(this.turnRunner, { ...request, session }, count, gone)
  }

  countTokens(...args: Parameters<TurnRunner['countTokens']>): Promise<number> {
    return this.turnRunner.countTokens(...args)
  }

  drain(graceMs: number): Promise<boolean> {
    return this.turnRunner.drain(graceMs)
  }
}

/** Allocates a turn of a session, as a turn runner does. */
export async function allocateTurn(
  sessions: Sessions,
  sessionId: string,
  keyTag?: string | null,
): Promise<TurnAllocation> {
  using session = sessions.acquire(sessionId)
  return await sessions.allocateTurn(session, keyTag)
}
