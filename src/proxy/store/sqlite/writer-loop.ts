/**
 * What the writer thread does with its calls: it collects them into groups and commits them. What queues up while one
 * group is being synced is the next group, so that throughput grows with load while a lone call waits for nobody.
 */
import type { Reply, ThreadCall } from './calls.ts'
import type { WriteMethods, Writer } from './writer.ts'

export type WriterMessage = ThreadCall<WriteMethods>[] | 'close'

/** The loop's end of the line to whoever calls. */
interface WriterPort {
  reply(replies: Reply[]): void
  /** A message that has come, and that `receive` has not been told of. */
  next(): WriterMessage | undefined
  close(): void
}

/** How long the opening of a turn waits for another operation to share its commit with. */
const OPENING_WAIT_MS = 10

/** Without work for so long, the log is checkpointed. */
const IDLE_MS = 250

/** From so many operations on a group waits for no more: it bounds the time for which the first one waits for the last. */
const MAX_GROUP = 512

export class WriterLoop {
  readonly #writer: Writer
  readonly #closeDatabase: () => void
  readonly #port: WriterPort
  #waiting: ThreadCall<WriteMethods>[] = []
  #openingTimer: NodeJS.Timeout | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #purging: NodeJS.Immediate | undefined

  constructor(writer: Writer, closeDatabase: () => void, port: WriterPort) {
    this.#writer = writer
    this.#closeDatabase = closeDatabase
    this.#port = port
    this.#purgeSoon()
  }

  receive(first: WriterMessage): void {
    let message: WriterMessage | undefined = first
    while (message !== undefined) {
      if (message === 'close') {
        this.#close()
        return
      }
      this.#waiting.push(...message)
      if (this.#waiting.length >= MAX_GROUP) break
      message = this.#port.next()
    }
    if (this.#waiting.some((call) => call.method !== 'openTurn')) this.#commit()
    else this.#openingTimer ??= setTimeout(() => this.#commit(), OPENING_WAIT_MS)
  }

  #commit(): void {
    clearTimeout(this.#openingTimer)
    this.#openingTimer = undefined
    if (this.#waiting.length > 0) this.#port.reply(this.#writer.commit(this.#waiting))
    this.#waiting = []
    this.#maintain()
  }

  #maintain(): void {
    this.#attempt(() => this.#writer.checkpointIfDue())
    this.#idleTimer ??= setTimeout(() => this.#attempt(() => this.#writer.checkpoint()), IDLE_MS)
    this.#idleTimer.refresh()
    this.#purgeSoon()
  }

  /** Removes deleted sessions' rows in small steps, between which calls are served. */
  #purgeSoon(): void {
    this.#purging ??= setImmediate(() => {
      this.#purging = undefined
      if (this.#attempt(() => this.#writer.purge())) this.#purgeSoon()
    })
  }

  /** Upkeep that fails (a full disk) loses nothing, and comes round again after the next commit. */
  #attempt<T>(upkeep: () => T): T | undefined {
    try {
      return upkeep()
    } catch {
      return undefined
    }
  }

  /** The last connection to close checkpoints the log and removes it. */
  #close(): void {
    this.#commit()
    clearTimeout(this.#idleTimer)
    clearImmediate(this.#purging)
    this.#closeDatabase()
    this.#port.close()
  }
}
