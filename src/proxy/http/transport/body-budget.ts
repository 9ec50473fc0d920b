import type { IncomingMessage } from 'node:http'
import { ProxyError } from '../../../base/errors.ts'

export interface BodyBudgetOptions {
  /** Of all bodies together that are on their way. */
  totalBytes: number
  /** A body that is larger is refused elsewhere, and no longer kept. */
  bodyLimitBytes: number
}

interface Coming {
  caller: string
  bytes: number
}

/**
 * Bounds the memory of bodies that have begun and not ended. Each may be as large as the limit on one body allows, which
 * many at once, from clients that never end theirs, must not be: over the budget the largest of the caller who has most
 * under way is refused, and nobody else's.
 */
export class BodyBudget {
  readonly #options: BodyBudgetOptions
  readonly #coming = new Map<IncomingMessage, Coming>()
  #total = 0

  constructor(options: BodyBudgetOptions) {
    this.#options = options
  }

  /**
   * Counts the body of a request, which is about to be read. One that is refused has an `error` event, or is cut off where
   * nobody listens to that.
   * @param caller whose it is
   */
  watch(request: IncomingMessage, caller: string): void {
    if (!hasBody(request)) return
    this.#coming.set(request, { caller, bytes: 0 })
    request.on('data', (chunk: Buffer) => this.#add(request, chunk.length))
    for (const end of ['end', 'close']) request.once(end, () => this.#forget(request))
  }

  #add(request: IncomingMessage, bytes: number): void {
    const coming = this.#coming.get(request)
    if (coming === undefined) return
    coming.bytes += bytes
    this.#total += bytes
    if (coming.bytes > this.#options.bodyLimitBytes) this.#forget(request)
    if (this.#total > this.#options.totalBytes) this.#refuseOne()
  }

  #refuseOne(): void {
    const sums = new Map<string, number>()
    for (const { caller, bytes } of this.#coming.values()) sums.set(caller, (sums.get(caller) ?? 0) + bytes)
    const [most] = largest(sums, (sum) => sum)
    const [request, coming] = largest(this.#coming, ({ caller, bytes }) => (caller === most ? bytes : -1))
    this.#forget(request)
    const message = `Too much is being sent at once, and most of it by this caller: this body has ${coming.bytes} bytes so far`
    // Nobody waits for a body that came with a GET, or after its refusal.
    if (request.listenerCount('error') === 0) request.destroy()
    else request.emit('error', new ProxyError('queue_full', message, { retryAfterS: 1 }))
  }

  #forget(request: IncomingMessage): void {
    this.#total -= this.#coming.get(request)?.bytes ?? 0
    this.#coming.delete(request)
  }
}

/** Of entries of which there is one at least. */
function largest<Key, Value>(
  entries: Iterable<[Key, Value]>,
  sizeOf: (value: Value) => number,
): [Key, Value] {
  return [...entries].reduce((most, each) => (sizeOf(each[1]) > sizeOf(most[1]) ? each : most))
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['content-length'] !== undefined || headers['transfer-encoding'] !== undefined
}
