/** The port's operations that change data: commands to the writer thread. */
import type { Transferable } from 'node:worker_threads'
import { ProxyError } from '../../../base/errors.ts'
import { intercept } from '../../../base/interceptor.ts'
import { CONSUMER_WRITES } from '../port/consumers.ts'
import { IMPORT_WRITES } from '../port/imports.ts'
import type { NodeCoordination } from '../port/node-coordination.ts'
import {
  type NewSession,
  type OpenTurn,
  SESSION_WRITES,
  type SessionCreation,
  type SessionRecord,
  TURN_WRITES,
  type TurnOutcome,
  type TurnStore,
} from '../port/turn-store.ts'
import { listTransferableBuffers } from './calls.ts'
import type { ReaderMethods } from './reader.ts'
import { toNewRow } from './session-rows.ts'
import { forwardMethods, type StoreThread } from './store-thread.ts'
import { forwardReads, PageReader, type ThreadReader } from './thread-reader.ts'
import type { OutcomeMessage } from './turn-message.ts'
import { TurnSender } from './turn-sender.ts'
import { WriteCoalescer } from './write-coalescer.ts'
import type { WriteMethods } from './write-methods.ts'

/** The number of sessions that one sweep command removes, so that other commands are served in between. */
const SWEEP_BATCH = 200

const NO_IDS = new Int32Array(0)

const WRITES = [...SESSION_WRITES, ...TURN_WRITES, ...CONSUMER_WRITES, ...IMPORT_WRITES] as const

type ForwardableWrite = (typeof WRITES)[number]

interface ThreadStoreHooks {
  /** The access to a database that several nodes share; absent for others. */
  shared?: NodeCoordination
  /** Called before the threads end. */
  onClosing?: () => void
  /** Called after the threads have ended. */
  onClosed?: (() => void) | undefined
}

/** The store of a proxy: operations that do more than send one command. `connect` adds the others. */
export class ThreadStore
  extends PageReader
  implements Omit<TurnStore, keyof ThreadReader | ForwardableWrite>
{
  readonly #writer: StoreThread<WriteMethods>
  readonly #sent = new TurnSender()
  /** Whether {@link check} must commit: at the start, and after a failed write. */
  #mustCheck = true
  /** The number of failed writes. */
  #failures = 0
  /** The check that is running: concurrent probes share one check of a store that hangs. */
  #checking: Promise<void> | undefined
  readonly #openings = new WriteCoalescer((turn) => this.#sendOpening(turn))

  readonly #hooks: ThreadStoreHooks
  readonly shared: NodeCoordination | undefined
  readonly endedWell: boolean

  /** Returns a store that sends its commands to the threads. */
  static connect(
    writer: StoreThread<WriteMethods>,
    reader: StoreThread<ReaderMethods>,
    hooks: ThreadStoreHooks = {},
  ): ThreadStore & TurnStore {
    const store = new ThreadStore(writer, reader, hooks)
    const writes = forwardMethods<WriteMethods, ForwardableWrite>({ execute: store.#call }, WRITES)
    return Object.assign(store, forwardReads(reader), writes)
  }

  private constructor(
    writer: StoreThread<WriteMethods>,
    reader: StoreThread<ReaderMethods>,
    hooks: ThreadStoreHooks,
  ) {
    super(reader)
    this.#writer = writer
    this.endedWell = writer.endedWell
    this.#hooks = hooks
    this.shared = hooks.shared && this.#watch(hooks.shared)
    void writer.lost.then(() => this.#noteFailure())
  }

  createSession(session: NewSession): Promise<SessionCreation> {
    return this.#call('createSession', [toNewRow(session)])
  }

  endSession(
    sessionId: string,
    status: 'completed' | 'aborted',
    atMs: number,
    epoch?: number,
  ): Promise<SessionRecord | undefined> {
    this.#sent.forget(sessionId)
    return this.#call('endSession', [sessionId, status, atMs, epoch])
  }

  resetSession(sessionId: string, atMs: number, epoch?: number): Promise<SessionRecord | undefined> {
    this.#sent.forget(sessionId)
    return this.#call('resetSession', [sessionId, atMs, epoch])
  }

  deleteSession(sessionId: string, epoch?: number): Promise<boolean> {
    this.#sent.forget(sessionId)
    return this.#call('deleteSession', [sessionId, epoch])
  }

  async sweep(nowMs: number, sinceMs = 0): Promise<string[]> {
    const swept: string[] = []
    let batch: string[]
    do {
      // The ids of swept sessions arrive too late: the next request of one of them may have been sent by then.
      this.#sent.forgetAll()
      batch = await this.#call('sweep', [nowMs, sinceMs, SWEEP_BATCH])
      swept.push(...batch)
    } while (batch.length === SWEEP_BATCH)
    return swept
  }

  openTurn(turn: OpenTurn): Promise<void> {
    const opened = this.#openings.enqueue(turn)
    // The caller need not wait: closing the turn fails if opening it did.
    opened.catch(() => {})
    return opened
  }

  closeTurn(outcome: TurnOutcome): Promise<void> {
    const opening = this.#openings.take(outcome.sessionId, outcome.turnId)
    if (opening === undefined) return this.#sendOutcome(outcome)
    const recorded = this.#sendCompleteTurn(opening.turn, outcome)
    opening.settle(recorded)
    // If the session does not exist, the opening is rejected; there is nothing to close.
    return recorded.catch(rethrowUnlessSessionIsGone)
  }

  override get lost(): Promise<ProxyError> {
    return Promise.race([this.#writer.lost, super.lost])
  }

  /**
   * Checks the writer at the start, and later only after a failed write: probes are frequent, and a commit costs a
   * sync.
   */
  async check(): Promise<void> {
    if (!this.#mustCheck) return
    this.#checking ??= this.#tryCommit().finally(() => {
      this.#checking = undefined
    })
    await this.#checking
  }

  async #tryCommit(): Promise<void> {
    const failures = this.#failures
    await this.#call('tryCommit', [])
    // Another write may have failed meanwhile.
    if (failures === this.#failures) this.#mustCheck = false
  }

  /** Closes the reader first: the last connection to close removes the write-ahead log. */
  override async close(): Promise<void> {
    this.#openings.sendAll()
    this.#hooks.onClosing?.()
    await super.close()
    await this.#writer.close()
    this.#hooks.onClosed?.()
  }

  /**
   * Intercepts coordination. A claim discards the cached rows of a session, since another node may have owned it
   * meanwhile. A node that cannot read the owners of sessions serves no requests, as if its writes failed.
   */
  #watch(shared: NodeCoordination): NodeCoordination {
    return intercept(shared, {
      claim: (call, sessionId) => {
        this.#sent.forget(sessionId)
        return this.#noteIfFailed(call())
      },
      readOwner: (call) => this.#noteIfFailed(call()),
      waitUntilValid: (call) => this.#noteIfFailed(call()),
    })
  }

  #noteIfFailed<T>(done: Promise<T>): Promise<T> {
    done.catch((error) => {
      if (error instanceof ProxyError && error.code === 'store_failed') this.#noteFailure()
    })
    return done
  }

  #noteFailure(): void {
    this.#mustCheck = true
    this.#failures += 1
  }

  async #sendOpening(turn: OpenTurn): Promise<void> {
    const { sent, applyReply } = this.#sent.pack(turn)
    applyReply(await this.#write('openTurn', [sent]))
  }

  async #sendOutcome(outcome: TurnOutcome): Promise<void> {
    const { sent, applyReply } = this.#sent.packOutcome(outcome)
    const turn = await this.#write('closeTurn', [sent], listBuffers(sent))
    if (turn !== undefined) applyReply(turn)
  }

  async #sendCompleteTurn(turn: OpenTurn, outcome: TurnOutcome): Promise<void> {
    const request = this.#sent.pack(turn)
    const response = this.#sent.packOutcome(outcome)
    const reply = await this.#write('recordTurn', [request.sent, response.sent], listBuffers(response.sent))
    request.applyReply(reply.request)
    response.applyReply(reply.turn)
  }

  /**
   * Issues a command that may depend on committed turns, after all delayed openings. Turns do not depend on each other.
   */
  #call: StoreThread<WriteMethods>['execute'] = (method, args) => {
    this.#openings.sendAll()
    return this.#write(method, args)
  }

  #write: StoreThread<WriteMethods>['execute'] = (method, args, buffers) => {
    return this.#noteIfFailed(this.#writer.execute(method, args, buffers))
  }
}

function listBuffers(outcome: OutcomeMessage): Transferable[] {
  const { prompt, completionTokenIds, completionLogprobs, details = [] } = outcome
  const bodies = details.map(({ body }) => body)
  return listTransferableBuffers([prompt?.rest ?? NO_IDS, completionTokenIds, completionLogprobs, ...bodies])
}

function rethrowUnlessSessionIsGone(thrown: unknown): void {
  if (!(thrown instanceof ProxyError) || thrown.code !== 'session_not_found') throw thrown
}
