/**
 * The prompt of a completion for the record: its JSON text in pieces. An agent that keeps its own history sends all of
 * it again with each call; then all pieces but the last are those of the call before, and are stored once.
 */
import type { CompletionBody } from '../../../protocol/canonical/request.ts'

/** Of each piece but the last. Long, so that pieces are few; short, because the last one is stored with each call. */
const PIECE_CHARS = 1024

/**
 * Without the JSON text's last character, which would be another place's character in a prompt that goes on: a prompt
 * that extends another one begins with its pieces, and with the text of its last piece.
 */
export function promptPieces(prompt: CompletionBody['prompt']): string[] {
  const text = JSON.stringify(prompt).slice(0, -1)
  const pieces: string[] = []
  for (let start = 0; start < text.length; ) {
    const end = endOfPiece(text, start)
    pieces.push(text.slice(start, end))
    start = end
  }
  return pieces
}

/** @param pieces those of one prompt, or what is left of them: `[` or `"` and what comes after that */
export function* promptJson(pieces: readonly string[]): Generator<string> {
  yield* pieces
  yield pieces[0]!.startsWith('[') ? ']' : '"'
}

/** Never between the halves of a surrogate pair: the store would keep them as what no UTF-8 can say. */
function endOfPiece(text: string, start: number): number {
  const end = start + PIECE_CHARS
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code < 0xdc00
}
