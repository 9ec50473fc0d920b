/**
 * The prompt of a completion as it is stored: its JSON text in chunks. An agent that keeps its own history repeats all
 * of it in each request; then all chunks but the last equal those of the previous request, and are stored once.
 */
import type { CompletionBody } from '../../../protocol/canonical/request.ts'

/**
 * The length of each chunk but the last. Long, so that there are few chunks; short, because the last one is stored with
 * each request.
 */
const CHUNK_CHARS = 1024

/**
 * Splits the prompt's JSON text without its last character, in whose position a longer prompt has another one: a prompt
 * that extends another begins with its chunks, and with the text of its last chunk.
 */
export function toPromptChunks(prompt: CompletionBody['prompt']): string[] {
  const text = JSON.stringify(prompt).slice(0, -1)
  const chunks: string[] = []
  for (let start = 0; start < text.length; ) {
    const end = findChunkEnd(text, start)
    chunks.push(text.slice(start, end))
    start = end
  }
  return chunks
}

/** @param chunks those of one prompt, or the rest of them: `[` or `"` and the text after it */
export function* writePromptJson(chunks: readonly string[]): Generator<string> {
  yield* chunks
  yield chunks[0]!.startsWith('[') ? ']' : '"'
}

/** Returns the end of a chunk, never between the halves of a surrogate pair, which has no UTF-8. */
function findChunkEnd(text: string, start: number): number {
  const end = start + CHUNK_CHARS
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code < 0xdc00
}
