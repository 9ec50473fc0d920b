/** The main thread's handle of one of the store's threads. */
import type { Transferable } from 'node:worker_threads'
import { startThread } from '../../../base/assets.ts'
import { ProxyError } from '../../../base/errors.ts'
import {
  fromWireError,
  type Methods,
  type OpeningReport,
  type RemoteMethods,
  type SchemaChange,
  type ThreadCommand,
  type ThreadReply,
} from './calls.ts'

/** The roles of the threads of a store. */
export type StoreRole = 'writer' | 'reader'

/** The subset of a thread that this module uses; a `Worker` implements it. */
export interface ThreadPort {
  postMessage(message: unknown, transfer?: readonly Transferable[]): void
  on(event: 'message', listener: (replies: ThreadReply[]) => void): unknown
  on(event: 'error', listener: (cause: unknown) => void): unknown
  once(event: 'message', listener: (report: OpeningReport) => void): unknown
  once(event: 'error', listener: (cause: unknown) => void): unknown
  once(event: 'exit', listener: (status: number) => void): unknown
  terminate(): unknown
}

/** Starts the thread of a role; its first message reports whether it has opened the database. */
export type ThreadSpawner = (role: StoreRole, workerData: object) => ThreadPort

/** Returns a function that starts threads. @param entryPoints of an adapter's threads */
export function createThreadSpawner(entryPoints: Record<StoreRole, URL>): ThreadSpawner {
  return (role, workerData) => startThread(entryPoints[role], { workerData, name: `store-${role}` })
}

interface StoreThreadOptions {
  /**
   * Called for each message of the thread with the number of commands that it replies to, and the time since the first
   * of them was issued.
   */
  onReplies?: ((count: number, waitedMs: number) => void) | undefined
  /**
   * The time without a reply after which {@link StoreThread.close} terminates the thread. Its pending commands are then
   * rejected. Default: no limit.
   */
  closeTimeoutMs?: number
  spawn: ThreadSpawner
}

interface OutgoingCommand {
  call: ThreadCommand
  transfer: Transferable[]
}

interface PendingCommand {
  resolve: (value: unknown) => void
  reject: (error: ProxyError) => void
  calledAtMs: number
}

/** A thread of the store, to which commands are sent. */
export class StoreThread<T extends Methods<T>> {
  /**
   * Whether the previous process that wrote the database shut down cleanly. Always false for a database that several
   * nodes share.
   */
  readonly endedWell: boolean
  /** The migration that the thread made when it opened the database. */
  readonly migrated: SchemaChange | undefined
  readonly #worker: ThreadPort
  readonly #exited: Promise<void>
  readonly #closeTimeoutMs: number | undefined
  #closeTimer: NodeJS.Timeout | undefined
  readonly #pending = new Map<number, PendingCommand>()
  /** Commands of the current event-loop tick: waking the thread costs more than sending it another command. */
  #unsent: OutgoingCommand[] = []
  #lastId = 0
  /** Set once no further command can be served. */
  #ended: ProxyError | undefined
  readonly #loss = Promise.withResolvers<ProxyError>()

  /** Starts a thread. @throws ProxyError `start_failed` with the error that the thread reports */
  static async start<T extends Methods<T>>(
    role: StoreRole,
    workerData: object,
    options: StoreThreadOptions,
  ): Promise<StoreThread<T>> {
    const worker = options.spawn(role, workerData)
    const report = await new Promise<OpeningReport>((resolve, reject) => {
      worker.once('message', resolve)
      worker.once('error', reject)
      worker.once('exit', (status) => reject(new Error(`exit status ${status}`)))
    }).catch((cause: unknown) => {
      throw new ProxyError('start_failed', `the store's ${role} thread does not start`, { cause })
    })
    if (!report.opened) throw fromWireError(report.error)
    return new StoreThread<T>(worker, role, report, options)
  }

  private constructor(
    worker: ThreadPort,
    role: string,
    { endedWell = false, migrated }: Extract<OpeningReport, { opened: true }>,
    { onReplies, closeTimeoutMs }: StoreThreadOptions,
  ) {
    this.#worker = worker
    this.#closeTimeoutMs = closeTimeoutMs
    this.endedWell = endedWell
    this.migrated = migrated
    worker.on('message', (replies: ThreadReply[]) => {
      if (this.#closeTimer !== undefined) this.#terminateLater()
      if (onReplies) this.#notify(replies, onReplies)
      this.#settle(replies)
    })
    worker.on('error', (cause) => {
      // Errors other than a ProxyError may quote data, which must not be logged.
      const reason = cause instanceof Error && cause.name === 'ProxyError' ? `: ${cause.message}` : ''
      this.#fail(`the store's ${role} thread died${reason}`, cause)
    })
    this.#exited = new Promise((resolve) => {
      worker.once('exit', () => {
        clearTimeout(this.#closeTimer)
        this.#fail(`the store's ${role} thread has ended`)
        resolve()
      })
    })
  }

  /** Resolves with the cause if the thread ends without having been closed; otherwise never. */
  get lost(): Promise<ProxyError> {
    return this.#loss.promise
  }

  /**
   * Sends a command. Commands are served in the order in which they are issued. `transfer` moves buffers instead of
   * copying them.
   */
  execute<M extends keyof T & string>(
    method: M,
    args: Parameters<T[M]>,
    transfer: Transferable[] = [],
  ): Promise<ReturnType<T[M]>> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended)
    this.#lastId += 1
    const id = this.#lastId
    if (this.#unsent.length === 0) setImmediate(() => this.#send())
    this.#unsent.push({ call: { id, method, args }, transfer })
    return new Promise<unknown>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject, calledAtMs: performance.now() })
    }) as Promise<ReturnType<T[M]>>
  }

  /** Completes all commands issued before, then ends the thread; without a reply for the time limit, terminates it. */
  async close(): Promise<void> {
    if (this.#ended === undefined) {
      this.#terminateLater()
      this.#send()
      this.#worker.postMessage('close')
      this.#ended = new ProxyError('store_failed', 'the turn store is closed')
    }
    await this.#exited
  }

  #terminateLater(): void {
    clearTimeout(this.#closeTimer)
    if (this.#closeTimeoutMs === undefined) return
    this.#closeTimer = setTimeout(() => this.#worker.terminate(), this.#closeTimeoutMs)
  }

  #send(): void {
    const unsent = this.#unsent
    this.#unsent = []
    try {
      if (unsent.length > 0) this.#post(unsent)
    } catch {
      // A command that cannot be cloned must not block others.
      for (const each of unsent) this.#sendAlone(each)
    }
  }

  #sendAlone(unsent: OutgoingCommand): void {
    const { id, method } = unsent.call
    try {
      this.#post([unsent])
    } catch (cause) {
      // Usually the cause is an array that has been transferred already.
      const error = new ProxyError('store_failed', `${method} has arguments that cannot be transferred`, {
        cause,
      })
      this.#pending.get(id)?.reject(error)
      this.#pending.delete(id)
    }
  }

  #post(unsent: readonly OutgoingCommand[]): void {
    this.#worker.postMessage(
      unsent.map(({ call }) => call),
      unsent.flatMap(({ transfer }) => transfer),
    )
  }

  #notify(replies: readonly ThreadReply[], onReplies: NonNullable<StoreThreadOptions['onReplies']>): void {
    // Batches of texts have no pending command: their replies are ignored.
    const commands = replies.flatMap(({ id }) => this.#pending.get(id) ?? [])
    const [first] = commands
    if (first) onReplies(commands.length, performance.now() - first.calledAtMs)
  }

  #settle(replies: ThreadReply[]): void {
    for (const reply of replies) {
      const pending = this.#pending.get(reply.id)
      this.#pending.delete(reply.id)
      if ('error' in reply) pending?.reject(fromWireError(reply.error))
      else pending?.resolve(reply.value)
    }
  }

  #fail(message: string, cause?: unknown): void {
    if (this.#ended === undefined) {
      this.#ended = new ProxyError('store_failed', message, { cause })
      this.#loss.resolve(this.#ended)
    }
    for (const pending of this.#pending.values()) pending.reject(this.#ended)
    this.#pending.clear()
  }
}

/** Returns the methods of these names, each of which sends its command to the thread. */
export function forwardMethods<T extends Methods<T>, M extends keyof T & string>(
  thread: Pick<StoreThread<T>, 'execute'>,
  names: readonly M[],
): RemoteMethods<Pick<T, M>> {
  const forwarded = names.map((name) => [name, (...args: Parameters<T[M]>) => thread.execute(name, args)])
  return Object.fromEntries(forwarded) as RemoteMethods<Pick<T, M>>
}
