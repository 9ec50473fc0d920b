/**
 * The writer thread: collects calls into groups and commits them. What queues up while one group is being synced is
 * the next group, so that throughput grows with load while a lone call waits for nobody.
 */
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { type Call, type OpeningReport, toWireError } from './calls.ts'
import { type Durability, openForWriting } from './database.ts'
import { type WriteMethods, Writer } from './writer.ts'

export interface WriterData {
  path: string
  durability: Durability
  /** Memory for recent turns' token ids. */
  cacheBytes: number
}

type Message = Call<WriteMethods>[] | 'close'

/** How long the opening of a turn waits for another operation to share its commit with. */
const OPENING_WAIT_MS = 10

/** Without work for so long, the log is checkpointed. */
const IDLE_MS = 250

/** From so many operations on a group waits for no more: it bounds the time for which the first one waits for the last. */
const MAX_GROUP = 512

const port = parentPort!

class WriterLoop {
  readonly #writer: Writer
  readonly #closeDatabase: () => void
  #waiting: Call<WriteMethods>[] = []
  #openingTimer: NodeJS.Timeout | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #purging: NodeJS.Immediate | undefined

  constructor(writer: Writer, closeDatabase: () => void) {
    this.#writer = writer
    this.#closeDatabase = closeDatabase
  }

  start(): void {
    port.on('message', (first: Message) => this.#receive(first))
    this.#purgeSoon()
  }

  #receive(first: Message): void {
    let message: Message | undefined = first
    while (message !== undefined) {
      if (message === 'close') {
        this.#close()
        return
      }
      this.#waiting.push(...message)
      if (this.#waiting.length >= MAX_GROUP) break
      message = receiveMessageOnPort(port)?.message
    }
    if (this.#waiting.some((call) => call.method !== 'openTurn')) this.#commit()
    else this.#openingTimer ??= setTimeout(() => this.#commit(), OPENING_WAIT_MS)
  }

  #commit(): void {
    clearTimeout(this.#openingTimer)
    this.#openingTimer = undefined
    if (this.#waiting.length > 0) port.postMessage(this.#writer.commit(this.#waiting))
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
    port.close()
  }
}

function open({ path, durability, cacheBytes }: WriterData): OpeningReport {
  try {
    const { db, close, files } = openForWriting(path, durability)
    new WriterLoop(new Writer(db, cacheBytes, () => files.check()), close).start()
    return { opened: true }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

port.postMessage(open(workerData))
