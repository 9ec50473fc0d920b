/**
 * Extraction of files from messages: usually images, as `data:` URLs in base64. The sessions of a group have the same
 * images, so the bytes are stored once for all sessions, and a message as the literals around them.
 */

/** The text before the bytes in a `data:` URL. */
const BASE64_HEAD = ';base64,'

/** Shorter blobs stay in the text: their own rows would take as much space. */
const MIN_BASE64_CHARS = 1024

/** A text split into blobs and the literals around them. */
interface TextWithBlobs {
  /** The literals, one more than there are blobs: each blob, in base64, is between two of them. */
  readonly literals: readonly string[]
  readonly blobs: readonly Buffer[]
}

/**
 * Splits a text into literals and blobs, in linear time.
 * @param text JSON, in which a URL ends with a quotation mark
 * @returns undefined for a text without blobs
 */
export function extractBlobs(text: string): TextWithBlobs | undefined {
  const literals: string[] = []
  const blobs: Buffer[] = []
  let done = 0
  for (let head = text.indexOf(BASE64_HEAD); head !== -1; ) {
    const start = head + BASE64_HEAD.length
    const end = text.indexOf('"', start)
    if (end === -1) break
    const blob = end - start < MIN_BASE64_CHARS ? undefined : decode(text.slice(start, end))
    if (blob !== undefined) {
      literals.push(text.slice(done, start))
      blobs.push(blob)
      done = end
    }
    head = text.indexOf(BASE64_HEAD, end)
  }
  return blobs.length === 0 ? undefined : { literals: [...literals, text.slice(done)], blobs }
}

/** Reverses {@link extractBlobs}. */
export function insertBlobs({ literals, blobs }: TextWithBlobs): string {
  return literals.map((literal, index) => literal + (blobs[index]?.toString('base64') ?? '')).join('')
}

/** Decodes base64; undefined if encoding would not restore the text, as with base64url or without padding. */
function decode(base64: string): Buffer | undefined {
  const bytes = Buffer.from(base64, 'base64')
  return bytes.toString('base64') === base64 ? bytes : undefined
}
