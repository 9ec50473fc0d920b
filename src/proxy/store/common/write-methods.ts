/** The writer's methods, which both databases share. */
import { ProxyError } from '../../../base/errors.ts'
import type { Consumer, ConsumerSession, GroupMember, LeaseChange, NewLease } from '../port/consumers.ts'
import type { ImportEntry } from '../port/imports.ts'
import type { MarksChange } from '../port/marks.ts'
import type { Reward, SessionCreation, SessionRecord, TurnDetails, TurnError } from '../port/turn-store.ts'
import type { Reply, ThreadCommand } from './calls.ts'
import type { NewSessionRow } from './session-rows.ts'
import type { SessionTables } from './tables.ts'
import type { OutcomeMessage, RequestReply, TextBatch, TurnMessage, TurnReply } from './turn-message.ts'
import type { TurnWriter } from './turns.ts'

export interface ConsumerMethods {
  createConsumer(consumer: Consumer): { created: boolean; consumer: Consumer }
  deleteConsumer(name: string): boolean
  leaseSessions(lease: NewLease): number[]
  putIntoGroups(consumer: string, members: readonly GroupMember[]): void
  discardGroups(consumer: string, groups: readonly string[], nowMs: number): number
  changeLease(change: LeaseChange): string[]
  putGiven(sessionId: string, given: readonly ConsumerSession[]): void
}

export interface WriteMethods extends ConsumerMethods {
  setImported(item: ImportEntry, isImported: boolean): void
  createSession(session: NewSessionRow): SessionCreation
  endSession(
    sessionId: string,
    status: 'completed' | 'aborted',
    atMs: number,
    epoch?: number,
  ): SessionRecord | undefined
  setReward(sessionId: string, reward: Reward, atMs: number): SessionRecord | undefined
  changeMarks(sessionId: string, change: MarksChange, atMs: number): SessionRecord | undefined
  resetSession(sessionId: string, atMs: number, epoch?: number): SessionRecord | undefined
  deleteSession(sessionId: string, epoch?: number): boolean
  sweep(nowMs: number, sinceMs: number, limit: number): string[]
  openTurn(turn: TurnMessage): RequestReply
  /** Stores a batch of the texts of a turn that is opened after it. */
  putStretch(stretch: TextBatch): void
  /** Closes a turn. @returns its row; undefined if it has been removed meanwhile */
  closeTurn(outcome: OutcomeMessage): number | undefined
  /** Opens and closes a turn. */
  recordTurn(turn: TurnMessage, outcome: OutcomeMessage): TurnReply
  markUndelivered(sessionId: string, turnId: string, error: TurnError, retriesAnswered: number): void
  answerRetry(sessionId: string, turnId: string, retryCount: number): number | undefined
  addDetails(sessionId: string, turns: readonly TurnDetails[]): void
  /** Writes without a change, to find out whether a commit is possible. */
  tryCommit(): void
}

/** Turns in flight whose opening failed, so that closing them must fail too. */
export class OpenFailures {
  readonly #turns = new Set<string>()

  /** Records the outcome of a group. @param calls its commands, in the order of `replies` */
  note(calls: readonly ThreadCommand<WriteMethods>[], replies: readonly Reply[]): void {
    for (const [place, call] of calls.entries()) {
      if (call.method === 'closeTurn') this.#turns.delete((call.args[0] as OutcomeMessage).turnId)
      const reply = replies[place]!
      if (call.method === 'putStretch' && 'error' in reply) (call.args[0] as TextBatch).undone()
      const refused = 'error' in reply && reply.error.code === 'store_failed'
      if (call.method === 'openTurn' && refused) this.#turns.add((call.args[0] as TurnMessage).turnId)
    }
  }

  /** Fails the closing of such a turn. @throws ProxyError `store_failed` */
  refuse(turnId: string): void {
    if (!this.#turns.has(turnId)) return
    throw new ProxyError('store_failed', 'the turn could not be stored when it was opened')
  }
}

/** The methods that each adapter implements itself. */
type OwnMethods = Pick<WriteMethods, 'sweep' | 'tryCommit' | 'setImported'> & ConsumerMethods

export function writeMethods(
  turns: TurnWriter,
  sessions: SessionTables,
  unopened: OpenFailures,
  own: OwnMethods,
): WriteMethods {
  const toBeChanged = (sessionId: string, epoch: number | undefined) => {
    if (epoch !== undefined) sessions.checkEpoch(sessionId, epoch)
    turns.forgetSession(sessionId)
  }
  return {
    createSession: (session) => sessions.create(session),
    endSession: (sessionId, status, atMs, epoch) => {
      toBeChanged(sessionId, epoch)
      return sessions.end(sessionId, status, atMs)
    },
    setReward: (sessionId, reward, atMs) => sessions.setReward(sessionId, reward, atMs),
    changeMarks: (sessionId, change, atMs) => sessions.changeMarks(sessionId, change, atMs),
    resetSession: (sessionId, atMs, epoch) => {
      toBeChanged(sessionId, epoch)
      return sessions.reset(sessionId, atMs)
    },
    deleteSession: (sessionId, epoch) => {
      toBeChanged(sessionId, epoch)
      return sessions.delete(sessionId)
    },
    openTurn: (turn) => turns.open(turn),
    putStretch: (stretch) => turns.putStretch(stretch),
    closeTurn: (outcome) => {
      const turn = turns.close(outcome)
      // There is no such open turn: it was deleted or reset meanwhile, or its opening failed.
      if (turn === undefined) unopened.refuse(outcome.turnId)
      return turn
    },
    recordTurn: (turn, outcome) => turns.record(turn, outcome),
    markUndelivered: (...undelivered) => turns.markUndelivered(...undelivered),
    answerRetry: (...retry) => turns.answerRetry(...retry),
    addDetails: (...details) => turns.addDetails(...details),
    ...own,
  }
}
