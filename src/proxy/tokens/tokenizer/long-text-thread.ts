/** The thread that encodes very long texts; {@link LongTextEncoder} is its other side. */
import { parentPort, workerData } from 'node:worker_threads'
import { openRustTokenizer, type TokenizerSource } from './rust-tokenizer.ts'

/** A text to encode. */
export interface LongTextJob {
  id: number
  text: string
}

/** The ids of a job's text, or the reason why it has none. */
export type LongTextReply = { id: number; ids: Int32Array<ArrayBuffer> } | { id: number; error: unknown }

const tokenizer = openRustTokenizer(workerData as TokenizerSource)

parentPort!.on('message', async ({ id, text }: LongTextJob) => {
  try {
    const encoding = await (await tokenizer)!.encode(text, null, { addSpecialTokens: false })
    const ids = Int32Array.from(encoding.getIds())
    parentPort!.postMessage({ id, ids } satisfies LongTextReply, [ids.buffer])
  } catch (error) {
    parentPort!.postMessage({ id, error } satisfies LongTextReply)
  }
})
