/**
 * The store's threads, in the process of the simulator: the real loops on the real SQLite, with delayed messages.
 * Buffers are transferred as with `postMessage`.
 */
import { EventEmitter } from 'node:events'
import type { Transferable } from 'node:worker_threads'
import type Database from 'better-sqlite3'
import type { ThreadReply } from '../../../src/proxy/store/common/calls.ts'
import { toWireError } from '../../../src/proxy/store/common/calls.ts'
import { ReaderLoop, type ReaderMessage } from '../../../src/proxy/store/common/reader-loop.ts'
import type { StoreRole, ThreadPort, ThreadSpawner } from '../../../src/proxy/store/common/store-thread.ts'
import type { Durability } from '../../../src/proxy/store/port/turn-store.ts'
import { openForReading, openForWriting } from '../../../src/proxy/store/sqlite/database.ts'
import { createReader } from '../../../src/proxy/store/sqlite/reader.ts'
import { Writer } from '../../../src/proxy/store/sqlite/writer.ts'
import { WriterLoop, type WriterMessage } from '../../../src/proxy/store/sqlite/writer-loop.ts'
import { Machine } from './machine.ts'

interface ThreadData {
  path: string
  durability: Durability
  cacheBytes: number
}

type Message = WriterMessage | ReaderMessage

/** Schedules the threads' work. */
export interface Timeline {
  readonly nowMs: number
  after(delayMs: number, task: () => void, owner: Machine): unknown
}

/** The disk and the threads that use it, with their faults. */
export class Disk {
  readonly #time: Timeline
  readonly #random: () => number
  readonly #writers = new Set<SimThread>()
  /** The maximum duration of a commit. */
  slowMs = 3
  #isFull = false
  #isBroken = false
  /** The time at which it broke last. */
  brokenAtMs = 0

  constructor(time: Timeline, random: () => number) {
    this.#time = time
    this.#random = random
  }

  get isBroken(): boolean {
    return this.#isBroken
  }

  get isUsable(): boolean {
    return !this.#isFull && !this.#isBroken
  }

  /** Sets whether SQLite has no room for another page. */
  setFull(isFull: boolean): void {
    this.#isFull = isFull
    for (const writer of this.#writers) writer.setFull(isFull)
  }

  /** Sets whether every commit fails. */
  setBroken(isBroken: boolean): void {
    if (isBroken && !this.#isBroken) this.brokenAtMs = this.#time.nowMs
    this.#isBroken = isBroken
  }

  killWriter(): void {
    for (const writer of [...this.#writers]) writer.crash(new Error('the thread was killed'))
  }

  /** Starts a thread for the proxy on the current machine. */
  spawn: ThreadSpawner = (role, data) => {
    const thread = new SimThread(
      this.#time,
      () => this.#delayMs(role),
      () => {
        if (this.#isBroken) throw new Error('disk I/O error')
      },
    )
    if (role === 'writer') this.#writers.add(thread)
    thread.start(role, data as ThreadData, this.#isFull)
    thread.once('exit', () => this.#writers.delete(thread))
    return thread
  }

  #delayMs(role: StoreRole): number {
    return role === 'writer' ? 0.05 + this.slowMs * this.#random() : 0.05 + 0.3 * this.#random()
  }
}

class SimThread extends EventEmitter implements ThreadPort {
  readonly #time: Timeline
  readonly #delayMs: () => number
  readonly #beforeCommit: () => void
  /** A separate machine, so that the timers end with the thread. It dies with the machine of the proxy. */
  readonly #machine: Machine
  readonly #main = Machine.current!
  readonly #inbox: Message[] = []
  #receive: ((message: Message) => void) | undefined
  #close: () => void = () => {}
  #db: Database.Database | undefined
  #pages = 0
  #isScheduled = false
  #lastReplyAtMs = 0

  constructor(time: Timeline, delayMs: () => number, beforeCommit: () => void) {
    super()
    this.#time = time
    this.#delayMs = delayMs
    this.#beforeCommit = beforeCommit
    this.#machine = new Machine(`${this.#main.name}'s store`)
    this.#main.onDeath(() => this.#end())
  }

  start(role: StoreRole, data: ThreadData, isFull: boolean): void {
    try {
      if (role === 'writer') this.#openWriter(data)
      else this.#openReader(data)
      if (role === 'writer' && isFull) this.setFull(true)
      this.#notify({ opened: true })
    } catch (error) {
      this.#notify({ opened: false, error: structuredClone(toWireError(error)) })
    }
  }

  /** Sets whether the database may not grow. */
  setFull(isFull: boolean): void {
    if (this.#db?.open !== true) return
    if (isFull) this.#pages = this.#db.pragma('page_count', { simple: true }) as number
    this.#db.pragma(`max_page_count = ${isFull ? this.#pages : 0xfffffffe}`)
  }

  postMessage(message: unknown, transfer: readonly Transferable[] = []): void {
    this.#inbox.push(structuredClone(message, { transfer: transfer as ArrayBuffer[] }) as Message)
    this.#schedule()
  }

  /** Ends as a thread that throws: the proxy receives the error. */
  crash(cause: Error): void {
    if (this.#machine.isDead) return
    this.#end()
    this.#main.run(() => {
      this.emit('error', cause)
      this.emit('exit', 1)
    })
  }

  terminate(): void {
    if (this.#machine.isDead) return
    this.#end()
    this.#main.run(() => this.emit('exit', 1))
  }

  #end(): void {
    if (this.#machine.isDead) return
    this.#machine.kill()
    // Closing rolls back an open transaction, as in a process that dies in the middle of one.
    this.#close()
  }

  #schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    this.#time.after(
      this.#delayMs(),
      () => {
        this.#isScheduled = false
        const message = this.#inbox.shift()
        if (message !== undefined) this.#receive?.(message)
        if (this.#inbox.length > 0) this.#schedule()
      },
      this.#machine,
    )
  }

  #notify(message: unknown, transfer: Transferable[] = []): void {
    const copy = structuredClone(message, { transfer: transfer as ArrayBuffer[] })
    // The thread replies after it has committed the group. A process that dies before has acknowledged nothing.
    this.#lastReplyAtMs = Math.max(this.#lastReplyAtMs, this.#time.nowMs + this.#delayMs())
    this.#time.after(this.#lastReplyAtMs - this.#time.nowMs, () => this.emit('message', copy), this.#main)
  }

  #openWriter({ path, durability, cacheBytes }: ThreadData): void {
    const { db, close, files } = openForWriting(path, durability)
    this.#db = db
    this.#close = close
    const writer = new Writer(db, cacheBytes, () => {
      files.check()
      this.#beforeCommit()
    })
    const loop = this.#machine.run(
      () =>
        new WriterLoop(writer, close, {
          reply: (replies: ThreadReply[]) => this.#notify(replies),
          next: () => this.#inbox.shift() as WriterMessage | undefined,
          close: () => this.#exit(),
        }),
    )
    this.#receive = (message) => loop.receive(message as WriterMessage)
  }

  #openReader({ path, cacheBytes }: ThreadData): void {
    const db = openForReading(path)
    this.#close = () => db.close()
    const loop = new ReaderLoop(createReader(db, cacheBytes), () => db.close(), {
      reply: (replies: ThreadReply[], transfer) => this.#notify(replies, transfer),
      close: () => this.#exit(),
    })
    this.#receive = (message) => loop.receive(message as ReaderMessage)
  }

  /** Exits after the pending replies. */
  #exit(): void {
    const delayMs = Math.max(0, this.#lastReplyAtMs - this.#time.nowMs)
    this.#time.after(
      delayMs,
      () => {
        this.#machine.kill()
        this.emit('exit', 0)
      },
      this.#main,
    )
  }
}
