/**
 * What the writer thread does with its calls: it commits them in groups, one after the other. What queues up while one group
 * is on its way is the next one. While the database is away nobody waits for long but those whose group was sent: nobody
 * knows yet whether that was a commit.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { ProxyError } from '../../../base/errors.ts'
import { type Reply, type ThreadCall, toWireError } from '../record/calls.ts'
import { WaitingCalls } from '../record/waiting-calls.ts'
import type { WriteMethods } from '../record/write-methods.ts'
import { PATIENCE_MS, type Writer } from './writer.ts'

type Call = ThreadCall<WriteMethods>

export type WriterMessage = Call[] | 'close'

interface WriterPort {
  reply(replies: Reply[]): void
  /** Nothing can be written any more. */
  fail(error: ProxyError): void
  close(): void
}

/** How long the opening of a turn waits for another operation to share its commit with. */
const OPENING_WAIT_MS = 10

/** Without work for so long, rows of deleted sessions are removed. */
const IDLE_MS = 50

export class WriterLoop {
  readonly #writer: Writer
  readonly #port: WriterPort
  /** What has come, in order. */
  #inbox: Call[] = []
  readonly #waiting = new WaitingCalls()
  #isRunning = false
  /** Whether something waits that shall not wait for others. */
  #isDue = false
  #isClosing = false
  /** Whether rows of deleted sessions may be left. */
  #isUntidy = true
  /** When the group began that is on its way. */
  #busySinceMs: number | undefined
  #idleTimer: NodeJS.Timeout | undefined
  readonly #watch: NodeJS.Timeout

  constructor(writer: Writer, port: WriterPort) {
    this.#writer = writer
    this.#port = port
    this.#watch = setInterval(() => this.#refuseOld(), PATIENCE_MS / 10)
    this.#watch.unref()
    this.#tidySoon()
  }

  receive(message: WriterMessage): void {
    if (message === 'close') this.#isClosing = true
    else this.#inbox.push(...message)
    this.#refuseOld()
    if (!this.#isRunning) void this.#run()
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    clearTimeout(this.#idleTimer)
    while (this.#inbox.length + this.#waiting.size > 0) await this.#serveSome()
    if (this.#writer.lost !== undefined) return this.#port.fail(this.#writer.lost)
    this.#isRunning = false
    if (this.#isClosing) await this.#close()
    else this.#tidySoon()
  }

  /** A sweep may delete any session: what was called for before it is done before it. */
  async #serveSome(): Promise<void> {
    const sweepAt = this.#inbox.findIndex(({ method }) => method === 'sweep')
    const before = sweepAt === -1 ? this.#inbox.length : sweepAt
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
    const sweep = this.#inbox.shift()
    if (sweep !== undefined) await this.#sweep(sweep)
  }

  async #commit(): Promise<void> {
    // Of a session that is deleted, another one may be made in the same group.
    const group = this.#waiting.takeGroup(({ method }) => method === 'deleteSession')
    this.#isUntidy ||= group.some(({ method }) => method === 'deleteSession' || method === 'resetSession')
    this.#busySinceMs = performance.now()
    this.#port.reply(await this.#writer.commit(group))
    this.#busySinceMs = undefined
    this.#isDue = this.#waiting.size > 0
  }

  async #sweep({ id, args }: Call): Promise<void> {
    this.#busySinceMs = performance.now()
    try {
      const swept = await this.#writer.sweep(...(args as [number, number]))
      this.#isUntidy ||= swept.length > 0
      this.#port.reply([{ id, value: swept }])
    } catch (error) {
      this.#port.reply([{ id, error: toWireError(error) }])
    }
    this.#busySinceMs = undefined
  }

  /** The database is away: who has only waited is told. */
  #refuseOld(): void {
    if (this.#busySinceMs === undefined || performance.now() - this.#busySinceMs < PATIENCE_MS) return
    const refused = this.#inbox.splice(0)
    while (this.#waiting.size > 0) refused.push(...this.#waiting.takeGroup())
    if (refused.length === 0) return
    const message = 'the database is away: nothing can be put on record until it is back'
    this.#port.reply(this.#writer.refuse(refused, new ProxyError('store_failed', message)))
  }

  /** In small steps, between which calls are served. */
  #tidySoon(): void {
    if (!this.#isUntidy) return
    this.#idleTimer = setTimeout(async () => {
      this.#isRunning = true
      // Upkeep that fails loses nothing, and comes round again.
      this.#isUntidy = await this.#writer.purge().catch(() => true)
      await this.#run()
    }, IDLE_MS)
  }

  async #close(): Promise<void> {
    clearTimeout(this.#idleTimer)
    clearInterval(this.#watch)
    await this.#writer.close()
    this.#port.close()
  }
}
