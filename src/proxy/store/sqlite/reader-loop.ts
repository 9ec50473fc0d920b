/** What the reader thread does with its calls: it serves one after the other, each with a message of its own. */
import type { Transferable } from 'node:worker_threads'
import { invoke, type Reply, type ThreadCall, toWireError, wholeBuffers } from './calls.ts'
import type { Reader, ReadMethods, TurnPage } from './reader.ts'

export type ReaderMessage = ThreadCall<ReadMethods>[] | 'close'

interface ReaderPort {
  reply(replies: Reply[], transfer: Transferable[]): void
  close(): void
}

export class ReaderLoop {
  readonly #reader: Reader
  readonly #closeDatabase: () => void
  readonly #port: ReaderPort

  constructor(reader: Reader, closeDatabase: () => void, port: ReaderPort) {
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
      this.#port.reply([reply], buffersOf(call, reply))
    }
  }

  #serve(call: ThreadCall<ReadMethods>): Reply {
    try {
      return { id: call.id, value: invoke<ReadMethods>(this.#reader, call) }
    } catch (error) {
      return { id: call.id, error: toWireError(error) }
    }
  }
}

/** Token ids and logprobs are moved to the main thread, not copied. */
function buffersOf(call: ThreadCall<ReadMethods>, reply: Reply): Transferable[] {
  if (call.method !== 'readPage' || 'error' in reply) return []
  const { turns } = reply.value as TurnPage
  return wholeBuffers(
    turns.flatMap((turn) => [turn.promptTokenIds, turn.completionTokenIds, turn.completionLogprobs]),
  )
}
