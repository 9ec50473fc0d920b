/**
 * Commits the writer thread's commands in groups, one group after another. Commands that arrive during a commit form
 * the next group. While the database is unavailable, only commands whose group was sent wait longer than {@link
 * PATIENCE_MS}: the outcome of that group is unknown.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { ProxyError } from '../../../base/errors.ts'
import {
  invoke,
  type RemoteMethods,
  type ThreadCommand,
  type ThreadReply,
  toWireError,
} from '../common/calls.ts'
import { PendingCommands } from '../common/pending-commands.ts'
import type { OtherWriteMethods, WriteMethods } from '../common/write-methods.ts'
import type { LeaseRenewal, NodeStateReport, SessionOwnership } from '../port/node-coordination.ts'
import type { LeaseConnection } from './lease-connection.ts'
import type { Writer } from './writer.ts'
import { PATIENCE_MS } from './writer-connection.ts'

/** The methods that run immediately, concurrently with changes. */
interface LeaseMethods {
  /** @returns undefined: the lease has ended */
  beat(state: NodeStateReport & { seen: number }): LeaseRenewal | undefined
  ownerOf(sessionId: string): number | undefined
  setControl(name: string, value: unknown): number
  claimRollout(rolloutId: string): number
  findRollout(rolloutId: string): number | undefined
  releaseRollout(rolloutId: string): void
}

/** The methods that run alone, outside groups of commands. */
interface SeparateMethods extends OtherWriteMethods, Pick<WriteMethods, 'sweep' | 'tryCommit'> {
  /** Runs in order with the other commands of the session. */
  claim(sessionId: string, seizes: boolean): SessionOwnership | undefined
  /** Acquires a new lease in place of one that has ended. @returns its number */
  renew(): number
}

/** The commands that the writer of a shared database serves. */
export interface NodeWriteMethods extends WriteMethods, SeparateMethods, LeaseMethods {}

type WriterCommand = ThreadCommand<WriteMethods>

/**
 * Commands that run after all earlier commands have completed, and before any later one starts: they may concern any
 * session.
 */
const BARRIERS: ReadonlySet<string> = new Set(['sweep', 'renew'] satisfies (keyof NodeWriteMethods)[])

export type WriterMessage = WriterCommand[] | 'close'

interface WriterPort {
  reply(replies: ThreadReply[]): void
  /** Reports that the writer can never write again. */
  fail(error: ProxyError): void
  close(): void
}

/** The time that the opening of a turn waits for another operation to share a commit. */
const OPENING_WAIT_MS = 10

/** The idle time after which rows of deleted sessions are removed. */
const IDLE_MS = 50

export class WriterLoop {
  readonly #writer: Writer
  readonly #port: WriterPort
  readonly #leaseConnection: LeaseConnection
  readonly #separate: RemoteMethods<SeparateMethods>
  readonly #lease: RemoteMethods<LeaseMethods>
  /** Received commands, in order. */
  #inbox: WriterCommand[] = []
  readonly #waiting = new PendingCommands()
  #isRunning = false
  /** Whether a queued command must be committed without waiting for others. */
  #isDue = false
  #isClosing = false
  /** Whether rows of deleted sessions may be left. */
  #mustPurge = true
  /** The time at which the running group or command started. */
  #busySinceMs: number | undefined
  /** The running check of a connection whose statement takes long. */
  #checking: Promise<void> | undefined
  #idleTimer: NodeJS.Timeout | undefined
  readonly #timeoutTimer: NodeJS.Timeout

  constructor(writer: Writer, leaseConnection: LeaseConnection, port: WriterPort) {
    this.#writer = writer
    this.#leaseConnection = leaseConnection
    this.#port = port
    this.#separate = this.#separateMethods()
    this.#lease = this.#leaseMethods()
    this.#timeoutTimer = setInterval(() => this.#rejectIfBlocked(), PATIENCE_MS / 10)
    this.#timeoutTimer.unref()
    this.#purgeSoon()
  }

  receive(message: WriterMessage): void {
    if (message === 'close') this.#isClosing = true
    else {
      for (const call of message) {
        if (call.method in this.#lease) void this.#serve(this.#lease, call)
        else this.#inbox.push(call)
      }
    }
    this.#rejectIfBlocked()
    if (!this.#isRunning) void this.#run()
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    clearTimeout(this.#idleTimer)
    while (this.#inbox.length + this.#waiting.size > 0) await this.#serveSome()
    if (this.#writer.lost !== undefined) return this.#port.fail(this.#writer.lost)
    this.#isRunning = false
    if (this.#isClosing) await this.#close()
    else this.#purgeSoon()
  }

  async #serveSome(): Promise<void> {
    const barrierAt = this.#inbox.findIndex(({ method }) => BARRIERS.has(method))
    const before = barrierAt === -1 ? this.#inbox.length : barrierAt
    for (const call of this.#inbox.splice(0, before)) {
      this.#waiting.push(call)
      this.#isDue ||= call.method !== 'openTurn'
    }
    if (this.#waiting.size > 0) {
      if (this.#isDue || this.#isClosing) return this.#commit()
      this.#isDue = true
      await delay(OPENING_WAIT_MS)
      return
    }
    const barrier = this.#inbox.shift()
    if (barrier !== undefined) await this.#serveAlone(barrier)
  }

  async #commit(): Promise<void> {
    // A session is deleted alone, since one statement could not also create it again.
    const group = this.#waiting.takeGroup(
      ({ method }) => method === 'deleteSession' || method in this.#separate,
    )
    const [first] = group
    if (first !== undefined && first.method in this.#separate) {
      await this.#serveAlone(first)
      this.#isDue = this.#waiting.size > 0
      return
    }
    this.#mustPurge ||= group.some(({ method }) => method === 'deleteSession' || method === 'resetSession')
    this.#busySinceMs = performance.now()
    this.#port.reply(await this.#writer.commit(group))
    this.#busySinceMs = undefined
    this.#isDue = this.#waiting.size > 0
  }

  async #serveAlone(call: WriterCommand): Promise<void> {
    this.#busySinceMs = performance.now()
    await this.#serve(this.#separate, call)
    this.#busySinceMs = undefined
  }

  async #serve(methods: object, { id, method, args }: WriterCommand): Promise<void> {
    try {
      const value = await invoke(methods as Record<string, () => unknown>, { id, method, args })
      this.#port.reply([{ id, value }])
    } catch (error) {
      this.#port.reply([{ id, error: toWireError(error) }])
    }
  }

  #separateMethods(): RemoteMethods<SeparateMethods> {
    const writer = this.#writer
    return {
      ...writer.others,
      claim: (sessionId, seizes) => writer.claim(sessionId, seizes),
      renew: async () => {
        // A commit may have renewed the lease already.
        if (await this.#leaseConnection.hasEnded(writer.lease)) await writer.renew()
        return writer.lease
      },
      tryCommit: () => writer.tryCommit(),
      sweep: async (...range) => {
        const swept = await writer.sweep(...range)
        this.#mustPurge ||= swept.length > 0
        return swept
      },
    }
  }

  #leaseMethods(): RemoteMethods<LeaseMethods> {
    const [writer, leaseConnection] = [this.#writer, this.#leaseConnection]
    return {
      beat: (state) => leaseConnection.beat({ ...state, lease: writer.lease }),
      ownerOf: (sessionId) => leaseConnection.readOwner(sessionId),
      setControl: (name, value) => leaseConnection.setControl(name, value),
      claimRollout: (rolloutId) => leaseConnection.claimRollout(rolloutId, writer.lease),
      findRollout: (rolloutId) => leaseConnection.findRollout(rolloutId),
      releaseRollout: (rolloutId) => leaseConnection.releaseRollout(rolloutId, writer.lease),
    }
  }

  /** Rejects all waiting commands if the running group or command has not ended within {@link PATIENCE_MS}. */
  #rejectIfBlocked(): void {
    if (this.#busySinceMs === undefined || performance.now() - this.#busySinceMs < PATIENCE_MS) return
    this.#checking ??= this.#closeDeadConnection().finally(() => {
      this.#checking = undefined
    })
    const rejected = this.#inbox.splice(0)
    while (this.#waiting.size > 0) rejected.push(...this.#waiting.takeGroup())
    if (rejected.length === 0) return
    const message = 'the database is unavailable: turns cannot be committed until it is available again'
    this.#port.reply(this.#writer.reject(rejected, new ProxyError('store_failed', message)))
  }

  /**
   * Closes the connection if the server executes nothing for it. A host that lost its power, or a firewall that forgot
   * the connection, ends it without a packet, and TCP notices only after a quarter of an hour.
   */
  async #closeDeadConnection(): Promise<void> {
    const { serverProcess } = this.#writer
    const isExecuting = await this.#leaseConnection.isExecuting(serverProcess).catch(() => true)
    if (!isExecuting) this.#writer.destroyConnectionTo(serverProcess)
  }

  /** Removes rows in small steps, between which commands are served. */
  #purgeSoon(): void {
    if (!this.#mustPurge) return
    this.#idleTimer = setTimeout(async () => {
      this.#isRunning = true
      this.#busySinceMs = performance.now()
      // A failed step loses nothing, and is retried.
      this.#mustPurge = await this.#writer.purge().catch(() => true)
      this.#busySinceMs = undefined
      await this.#run()
    }, IDLE_MS)
  }

  async #close(): Promise<void> {
    clearTimeout(this.#idleTimer)
    clearInterval(this.#timeoutTimer)
    await this.#leaseConnection.close()
    await this.#writer.close()
    this.#port.close()
  }
}
