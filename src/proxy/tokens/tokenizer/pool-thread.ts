/** A thread of the tokenizer pool: reads the tokenizer once, then answers one text after the other. */
import { parentPort, workerData } from 'node:worker_threads'
import { type EncodeOptions, loadTokenizer } from './tokenizer.ts'

export interface PoolThreadData {
  /** Holds the model's files. */
  directory: string
}

export interface EncodeRequest {
  text: string
  options: EncodeOptions
}

export type EncodeReply = { ids: Int32Array<ArrayBuffer> } | { failure: unknown }

const port = parentPort!
const tokenizer = loadTokenizer((workerData as PoolThreadData).directory)

port.on('message', ({ text, options }: EncodeRequest) => {
  try {
    const ids = Int32Array.from(tokenizer.encode(text, options))
    port.postMessage({ ids } satisfies EncodeReply, [ids.buffer])
  } catch (failure) {
    port.postMessage({ failure } satisfies EncodeReply)
  }
})
