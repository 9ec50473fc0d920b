/**
 * The stored form of a text completion's prompt: its JSON text in chunks. An agent that manages its history repeats it
 * in each request. All chunks but the last then equal those of the previous request, and are stored once.
 */
import type { CompletionBody } from '../../../protocol/canonical/request.ts'

/**
 * The length of each chunk except the last. Longer chunks would be fewer, but the last one is stored again with each
 * request.
 */
const CHUNK_CHARS = 1024

/**
 * Splits the prompt's JSON text into chunks, without its last character (`]` or `"`). The chunks of a prompt that
 * extends another thus begin with the other's complete chunks and the text of its last one.
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

/**
 * Yields the JSON text of a prompt.
 * @param chunks the chunks of a prompt, or the end of a prompt, preceded by `[` or `"`
 */
export function* writePromptJson(chunks: readonly string[]): Generator<string> {
  yield* chunks
  yield chunks[0]!.startsWith('[') ? ']' : '"'
}

/** Returns the end of a chunk. It is never between the halves of a surrogate pair, which cannot be encoded in UTF-8. */
function findChunkEnd(text: string, start: number): number {
  const end = start + CHUNK_CHARS
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code < 0xdc00
}
