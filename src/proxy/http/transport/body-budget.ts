import type { IncomingMessage } from 'node:http'
import { ProxyError } from '../../../base/errors.ts'

export interface BodyBudgetOptions {
  /** Of all bodies together that are on their way. */
  totalBytes: number
  /** A body that is larger is refused elsewhere, and no longer kept. */
  bodyLimitBytes: number
}

/**
 * Bounds the memory of bodies that have begun and not ended. Each may be as large as the limit on one body allows, which
 * many at once, from clients that never end theirs, must not be: over the budget the largest is cut off.
 */
export class BodyBudget {
  readonly #options: BodyBudgetOptions
  readonly #bytesOf = new Map<IncomingMessage, number>()
  #total = 0

  constructor(options: BodyBudgetOptions) {
    this.#options = options
  }

  /** Counts the body of a request, which is about to be read. */
  watch(request: IncomingMessage): void {
    if (!hasBody(request)) return
    this.#bytesOf.set(request, 0)
    request.on('data', (chunk: Buffer) => this.#add(request, chunk.length))
    for (const end of ['end', 'close']) request.once(end, () => this.#forget(request))
  }

  #add(request: IncomingMessage, bytes: number): void {
    const before = this.#bytesOf.get(request)
    if (before === undefined) return
    this.#bytesOf.set(request, before + bytes)
    this.#total += bytes
    if (before + bytes > this.#options.bodyLimitBytes) this.#forget(request)
    if (this.#total > this.#options.totalBytes) this.#cutLargest()
  }

  #cutLargest(): void {
    let [request, bytes]: [IncomingMessage | undefined, number] = [undefined, -1]
    for (const [candidate, size] of this.#bytesOf) if (size > bytes) [request, bytes] = [candidate, size]
    if (!request) return
    this.#forget(request)
    const message = `Too much is being sent at once; this body, with ${bytes} bytes so far, was the largest`
    request.destroy(new ProxyError('body_too_large', message))
  }

  #forget(request: IncomingMessage): void {
    this.#total -= this.#bytesOf.get(request) ?? 0
    this.#bytesOf.delete(request)
  }
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['content-length'] !== undefined || headers['transfer-encoding'] !== undefined
}
