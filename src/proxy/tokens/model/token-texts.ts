import { setImmediate as breathe } from 'node:timers/promises'
import { StreamingDecoder } from '../tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'

/** Tokens between two looks at other work: some milliseconds. */
const STRETCH = 10_000

/**
 * What each token adds to the text: a character that is spread over several tokens is the text of the last of them, and
 * the others' is empty. All of them together are the text of the ids.
 */
export async function tokenTexts(tokenizer: Tokenizer, ids: Int32Array): Promise<string[]> {
  const decoder = new StreamingDecoder(tokenizer)
  const texts: string[] = []
  for (const [place, id] of ids.entries()) {
    texts.push(decoder.push([id]))
    if (place % STRETCH === STRETCH - 1) await breathe()
  }
  if (texts.length > 0) texts[texts.length - 1] += decoder.flush()
  return texts
}
