/**
 * What the writer thread does with its calls: it collects them into groups and commits them. What queues up while one
 * group is being synced is the next group, so that throughput grows with load while a lone call waits for nobody. Sessions
 * take turns, and what is much to write fills a group alone: others wait for one such group at most.
 */
import type { Reply, ThreadCall } from '../record/calls.ts'
import { MAX_GROUP, WaitingCalls } from '../record/waiting-calls.ts'
import type { WriteMethods } from '../record/write-methods.ts'
import type { Writer } from './writer.ts'

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

export class WriterLoop {
  readonly #writer: Writer
  readonly #closeDatabase: (endsWell: boolean) => void
  readonly #port: WriterPort
  readonly #waiting = new WaitingCalls()
  /** Whether something waits that shall not wait for others. */
  #isDue = false
  #openingTimer: NodeJS.Timeout | undefined
  #nextGroup: NodeJS.Immediate | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #purging: NodeJS.Immediate | undefined

  constructor(writer: Writer, closeDatabase: (endsWell: boolean) => void, port: WriterPort) {
    this.#writer = writer
    this.#closeDatabase = closeDatabase
    this.#port = port
    this.#purgeSoon()
  }

  receive(message: WriterMessage): void {
    if (this.#take(message) && this.#takeAll()) this.#commitDue()
  }

  /** What has come meanwhile as well. @returns whether the loop goes on */
  #takeAll(): boolean {
    for (let message = this.#port.next(); message !== undefined; message = this.#port.next()) {
      if (!this.#take(message)) return false
      if (this.#waiting.size >= MAX_GROUP) return true
    }
    return true
  }

  #take(message: WriterMessage): boolean {
    if (message === 'close') {
      this.#close()
      return false
    }
    for (const call of message) {
      // It may delete any session: what was called for before it is done before it.
      if (call.method === 'sweep') this.#commitAll()
      this.#waiting.push(call)
      this.#isDue ||= call.method !== 'openTurn'
      if (call.method === 'sweep') this.#commitAll()
    }
    return true
  }

  #commitDue(): void {
    if (this.#isDue) this.#commit()
    else if (this.#waiting.size > 0) this.#openingTimer ??= setTimeout(() => this.#commit(), OPENING_WAIT_MS)
  }

  /** A group; and what came while it was written has its turn in the next one. */
  #commit(): void {
    clearTimeout(this.#openingTimer)
    this.#openingTimer = undefined
    const group = this.#waiting.takeGroup()
    if (group.length > 0) this.#port.reply(this.#writer.commit(group))
    this.#isDue = this.#waiting.size > 0
    this.#maintain()
    if (!this.#isDue) return
    this.#nextGroup ??= setImmediate(() => {
      this.#nextGroup = undefined
      if (this.#takeAll()) this.#commitDue()
    })
  }

  #commitAll(): void {
    while (this.#waiting.size > 0) this.#commit()
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
    this.#commitAll()
    clearTimeout(this.#openingTimer)
    clearImmediate(this.#nextGroup)
    clearTimeout(this.#idleTimer)
    clearImmediate(this.#purging)
    this.#closeDatabase(true)
    this.#port.close()
  }
}
