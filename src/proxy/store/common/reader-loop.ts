/**
 * The command loop of the reader thread: starts commands in the order of arrival, and replies to each with a separate
 * message when it has completed.
 */
import type { Transferable } from 'node:worker_threads'
import {
  invoke,
  listTransferableBuffers,
  type MaybeAsyncMethods,
  type ThreadCommand,
  type ThreadReply,
  toWireError,
} from './calls.ts'
import type { ReaderMethods, TurnPage } from './reader.ts'

export type ReaderMessage = ThreadCommand<ReaderMethods>[] | 'close'

/** The methods of a reader, any of which may be asynchronous. */
export type DatabaseReader = MaybeAsyncMethods<ReaderMethods>

interface ReaderPort {
  reply(replies: ThreadReply[], transfer: Transferable[]): void
  close(): void
}

export class ReaderLoop {
  readonly #reader: DatabaseReader
  readonly #closeDatabase: () => void
  readonly #port: ReaderPort

  constructor(reader: DatabaseReader, closeDatabase: () => void, port: ReaderPort) {
    this.#reader = reader
    this.#closeDatabase = closeDatabase
    this.#port = port
  }

  receive(message: ReaderMessage): void {
    if (message === 'close') {
      this.#closeDatabase()
      this.#port.close()
      return
    }
    for (const call of message) {
      const reply = this.#serve(call)
      if (reply instanceof Promise) void reply.then((served) => this.#reply(call, served))
      else this.#reply(call, reply)
    }
  }

  #reply(call: ThreadCommand<ReaderMethods>, reply: ThreadReply): void {
    this.#port.reply([reply], listBuffers(call, reply))
  }

  #serve(call: ThreadCommand<ReaderMethods>): ThreadReply | Promise<ThreadReply> {
    const { id } = call
    const failed = (error: unknown): ThreadReply => ({ id, error: toWireError(error) })
    try {
      const value = invoke<DatabaseReader>(this.#reader, call as unknown as ThreadCommand<DatabaseReader>)
      return value instanceof Promise
        ? value.then((waited) => ({ id, value: waited }), failed)
        : { id, value }
    } catch (error) {
      return failed(error)
    }
  }
}

/** Returns the buffers of token ids and logprobs, which are transferred to the main thread rather than copied. */
function listBuffers(call: ThreadCommand<ReaderMethods>, reply: ThreadReply): Transferable[] {
  if (call.method !== 'readPage' || 'error' in reply) return []
  const { turns } = reply.value as TurnPage
  return listTransferableBuffers(
    turns.flatMap((turn) => [turn.promptTokenIds, turn.completionTokenIds, turn.completionLogprobs]),
  )
}
