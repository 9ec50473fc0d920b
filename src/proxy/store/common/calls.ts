/**
 * The protocol between the main thread and the store's threads: numbered commands in one direction, batches of replies
 * in the other.
 */
import type { Transferable } from 'node:worker_threads'
import { type ErrorCode, ProxyError, type ProxyErrorOptions } from '../../../base/errors.ts'

/** The methods of a thread. */
export type Methods<T> = { [M in keyof T]: (...args: never[]) => unknown }

/** The operations of a port as methods of a thread, which serves them synchronously. */
export type ThreadMethods<Port> = {
  [M in keyof Port]: Port[M] extends (...args: infer A) => Promise<infer R> ? (...args: A) => R : never
}

/** The methods of a thread as other threads call them. */
export type RemoteMethods<T extends Methods<T>> = {
  [M in keyof T]: (...args: Parameters<T[M]>) => Promise<ReturnType<T[M]>>
}

/** The methods of a thread, of which any may be asynchronous. */
export type MaybeAsyncMethods<T extends Methods<T>> = {
  [M in keyof T]: (...args: Parameters<T[M]>) => ReturnType<T[M]> | Promise<ReturnType<T[M]>>
}

/** A call of a method of a thread. */
export interface ThreadCommand<T = Record<string, unknown>> {
  id: number
  method: keyof T & string
  args: unknown[]
}

/** The reply to the command with this id. */
export type ThreadReply = { id: number; value: unknown } | { id: number; error: WireError }

/** The first message of a thread, after it has opened the database or has failed to. */
export type OpeningReport =
  | { opened: true; endedWell?: boolean; migrated?: SchemaChange | undefined }
  | { opened: false; error: WireError }

/** The schema versions before and after a migration. */
export interface SchemaChange {
  from: number
  to: number
}

/** The fields of a ProxyError, whose class is lost between threads. */
interface WireError {
  code: ErrorCode
  message: string
  param: string | undefined
  cause: unknown
}

/** Runs the method that a command names. */
export function invoke<T extends Methods<T>>(methods: T, call: ThreadCommand<T>): unknown {
  const method = methods[call.method] as unknown as (...args: unknown[]) => unknown
  return method.apply(methods, call.args)
}

/** Returns some methods of an object, bound to it. */
export function bindMethods<T extends object, M extends keyof T>(object: T, names: readonly M[]): Pick<T, M> {
  const bound = names.map((name) => [name, (object[name] as (...args: unknown[]) => unknown).bind(object)])
  return Object.fromEntries(bound) as Pick<T, M>
}

/** Converts an error. All but ProxyErrors come from the database or the disk, and become `store_failed`. */
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

/** Transferring a smaller buffer takes longer than copying it, on both threads. */
const MIN_MOVED_BYTES = 4 * 1024

/**
 * Returns the buffers to transfer to another thread instead of copying them: those of at least {@link MIN_MOVED_BYTES}
 * that a view covers completely, each once.
 */
export function listTransferableBuffers(arrays: ArrayBufferView[]): Transferable[] {
  const full = arrays.filter(
    ({ byteLength, buffer }) => byteLength >= MIN_MOVED_BYTES && byteLength === buffer.byteLength,
  )
  return [...new Set(full.map((array) => array.buffer))].filter((buffer) => buffer instanceof ArrayBuffer)
}
