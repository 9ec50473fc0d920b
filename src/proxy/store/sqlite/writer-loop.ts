/**
 * The loop of the writer thread: collects commands into groups and commits them. Commands that arrive while one group
 * is synced form the next group, so that throughput grows with load while a single command does not wait. {@link
 * PendingCommands} orders them, so that long commands do not delay others.
 */
import type { ThreadCommand, ThreadReply } from '../common/calls.ts'
import { MAX_GROUP, PendingCommands } from '../common/pending-commands.ts'
import type { WriteMethods } from '../common/write-methods.ts'
import type { Writer } from './writer.ts'

export type WriterMessage = ThreadCommand<WriteMethods>[] | 'close'

/** The loop's connection to the calling thread. */
interface WriterPort {
  reply(replies: ThreadReply[]): void
  /** Returns a message that has arrived and was not yet passed to `receive`. */
  next(): WriterMessage | undefined
  close(): void
}

/** How long the opening of a turn waits for another operation that can share its commit. */
const OPENING_WAIT_MS = 10

/** The log is checkpointed after this time without work. */
const IDLE_MS = 250

export class WriterLoop {
  readonly #writer: Writer
  readonly #closeDatabase: (endsWell: boolean) => void
  readonly #port: WriterPort
  readonly #waiting = new PendingCommands()
  /** Whether a queued command must be committed without waiting for others. */
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

  /** Receives the messages that arrived meanwhile. @returns whether the loop continues */
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
      // A sweep may delete any session, so earlier commands are committed before it.
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

  /** Commits a group. Commands that arrived meanwhile are committed in the next one. */
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

  /** Removes deleted sessions' rows in small steps, between which commands are served. */
  #purgeSoon(): void {
    this.#purging ??= setImmediate(() => {
      this.#purging = undefined
      if (this.#attempt(() => this.#writer.purge())) this.#purgeSoon()
    })
  }

  /**
   * Runs maintenance. A failure (such as a full disk) loses no data, and the next commit starts the maintenance again.
   */
  #attempt<T>(upkeep: () => T): T | undefined {
    try {
      return upkeep()
    } catch {
      return undefined
    }
  }

  /** Closes the database. The last connection to close checkpoints the log and removes it. */
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
