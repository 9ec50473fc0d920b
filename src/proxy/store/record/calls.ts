/** How the main thread and the store's threads talk: numbered calls one way, replies in batches the other way. */
import type { Transferable } from 'node:worker_threads'
import { type ErrorCode, ProxyError, type ProxyErrorOptions } from '../../../base/errors.ts'

/** The methods that one thread serves. */
export type Methods<T> = { [M in keyof T]: (...args: never[]) => unknown }

export interface ThreadCall<T = Record<string, unknown>> {
  id: number
  method: keyof T & string
  args: unknown[]
}

export type Reply = { id: number; value: unknown } | { id: number; error: WireError }

/** What a thread says once, when it has opened the database or has failed to. */
export type OpeningReport = { opened: true; endedWell?: boolean } | { opened: false; error: WireError }

/** A ProxyError without its class, which does not survive the way between threads. */
interface WireError {
  code: ErrorCode
  message: string
  param: string | undefined
  cause: unknown
}

/** Runs the method that a call names. */
export function invoke<T extends Methods<T>>(methods: T, call: ThreadCall<T>): unknown {
  const method = methods[call.method] as unknown as (...args: unknown[]) => unknown
  return method.apply(methods, call.args)
}

/** Anything but a ProxyError comes from SQLite or the disk, and becomes `store_failed`. */
export function toWireError(thrown: unknown): WireError {
  if (thrown instanceof ProxyError) {
    return { code: thrown.code, message: thrown.message, param: thrown.param, cause: thrown.cause }
  }
  const reason = thrown instanceof Error ? thrown.message : String(thrown)
  return {
    code: 'store_failed',
    message: `the turn store failed: ${reason}`,
    param: undefined,
    cause: thrown,
  }
}

export function fromWireError({ code, message, param, cause }: WireError): ProxyError {
  const options: ProxyErrorOptions = { cause }
  if (param !== undefined) options.param = param
  return new ProxyError(code, message, options)
}

/** To move a smaller one takes longer than to copy it, on both threads. */
const MIN_MOVED_BYTES = 4 * 1024

/** The buffers that are better moved to another thread than copied: whole ones, each once. */
export function wholeBuffers(arrays: ArrayBufferView[]): Transferable[] {
  const whole = arrays.filter(
    ({ byteLength, buffer }) => byteLength >= MIN_MOVED_BYTES && byteLength === buffer.byteLength,
  )
  return [...new Set(whole.map((array) => array.buffer))].filter((buffer) => buffer instanceof ArrayBuffer)
}
