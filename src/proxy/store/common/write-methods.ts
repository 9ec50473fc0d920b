/** The writer's methods, which both databases share. */
import { ProxyError } from '../../../base/errors.ts'
import type { ConsumerStore } from '../port/consumers.ts'
import type { ImportStore } from '../port/imports.ts'
import { SESSION_WRITES, type SessionCreation, TURN_WRITES, type TurnStore } from '../port/turn-store.ts'
import { bindMethods, type ThreadCommand, type ThreadMethods, type ThreadReply } from './calls.ts'
import type { NewSessionRow } from './session-rows.ts'
import type { SessionWriter } from './session-writer.ts'
import type { OutcomeMessage, RequestReply, TextBatch, TurnMessage, TurnReply } from './turn-message.ts'
import type { TurnWriter } from './turns.ts'

/** The names of the operations of the port that the writer has as methods. */
type PortWriteName =
  | (typeof SESSION_WRITES | typeof TURN_WRITES)[number]
  | 'endSession'
  | 'resetSession'
  | 'deleteSession'

/** The changes of one session. */
export interface SessionWriteMethods extends ThreadMethods<Pick<TurnStore, PortWriteName>> {
  createSession(session: NewSessionRow): SessionCreation
  /** Deletes a session that a sweep has selected, if it has still expired. @returns whether it was deleted */
  deleteExpired(sessionId: string, nowMs: number): boolean
  openTurn(turn: TurnMessage): RequestReply
  /** Stores a batch of the texts of a turn that is opened after it. */
  putTextBatch(batch: TextBatch): void
  /** Closes a turn. @returns its row id; undefined if it has been removed meanwhile */
  closeTurn(outcome: OutcomeMessage): number | undefined
  /** Opens and closes a turn. */
  recordTurn(turn: TurnMessage, outcome: OutcomeMessage): TurnReply
}

/** The changes of consumers and imports. */
export type OtherWriteMethods = ThreadMethods<ConsumerStore & ImportStore>

/** All methods of the writer. */
export interface WriteMethods extends SessionWriteMethods, OtherWriteMethods {
  sweep(nowMs: number, sinceMs: number, limit: number): string[]
  /** Commits without a change of data, to check whether a commit is possible. */
  tryCommit(): void
}

/** The ids of turns in flight whose opening failed: closing them must fail too. */
export class OpenFailures {
  readonly #turns = new Set<string>()

  /** Records the outcome of a group. @param calls its commands, in the order of `replies` */
  recordOutcomes(calls: readonly ThreadCommand<WriteMethods>[], replies: readonly ThreadReply[]): void {
    for (const [position, call] of calls.entries()) {
      if (call.method === 'closeTurn') this.#turns.delete((call.args[0] as OutcomeMessage).turnId)
      const reply = replies[position]!
      if (call.method === 'putTextBatch' && 'error' in reply) (call.args[0] as TextBatch).onUndone()
      const failed = 'error' in reply && reply.error.code === 'store_failed'
      if (call.method === 'openTurn' && failed) this.#turns.add((call.args[0] as TurnMessage).turnId)
    }
  }

  /** Rejects the closing of a turn whose opening failed. @throws ProxyError `store_failed` */
  rejectClosing(turnId: string): void {
    if (!this.#turns.has(turnId)) return
    throw new ProxyError('store_failed', 'the turn could not be stored when it was opened')
  }
}

export function createSessionWriteMethods(
  turns: TurnWriter,
  sessions: SessionWriter,
  unopened: OpenFailures,
): SessionWriteMethods {
  const prepareChange = (sessionId: string, epoch: number | undefined) => {
    if (epoch !== undefined) sessions.checkEpoch(sessionId, epoch)
    turns.forgetSession(sessionId)
  }
  return {
    createSession: (session) => sessions.create(session),
    endSession: (sessionId, status, atMs, epoch) => {
      prepareChange(sessionId, epoch)
      return sessions.end(sessionId, status, atMs)
    },
    resetSession: (sessionId, atMs, epoch) => {
      prepareChange(sessionId, epoch)
      return sessions.reset(sessionId, atMs)
    },
    deleteSession: (sessionId, epoch) => {
      prepareChange(sessionId, epoch)
      return sessions.delete(sessionId)
    },
    deleteExpired: (sessionId, nowMs) => {
      prepareChange(sessionId, undefined)
      return sessions.deleteExpired(sessionId, nowMs)
    },
    openTurn: (turn) => turns.open(turn),
    putTextBatch: (batch) => turns.putTextBatch(batch),
    closeTurn: (outcome) => {
      const turn = turns.close(outcome)
      // There is no such open turn: it was deleted or reset meanwhile, or its opening failed.
      if (turn === undefined) unopened.rejectClosing(outcome.turnId)
      return turn
    },
    recordTurn: (turn, outcome) => turns.record(turn, outcome),
    ...bindMethods(sessions, SESSION_WRITES),
    ...bindMethods(turns, TURN_WRITES),
  }
}
