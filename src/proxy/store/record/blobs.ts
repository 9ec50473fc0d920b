/**
 * Files that messages bring with them: images, as a rule, as `data:` URLs in base64. The samples of a group all have the
 * same pictures, so the bytes are stored once for all sessions, and a message's text as what stands between them.
 */
/** What stands before the bytes in a `data:` URL. */
const BASE64_HEAD = ';base64,'

/** Shorter ones stay in the text: rows of their own would take as much. */
const MIN_BASE64_CHARS = 1024

/** A text without the bytes that it brings. */
interface CutText {
  /** One more than there are blobs: each blob stands, in base64, between two of them. */
  readonly literals: readonly string[]
  readonly blobs: readonly Buffer[]
}

/**
 * @param text JSON, where a URL ends with a quotation mark
 * @returns undefined for a text that brings no bytes. The steps that it takes grow with the length of the text.
 */
export function cutBlobs(text: string): CutText | undefined {
  const literals: string[] = []
  const blobs: Buffer[] = []
  let done = 0
  for (let head = text.indexOf(BASE64_HEAD); head !== -1; ) {
    const start = head + BASE64_HEAD.length
    const end = text.indexOf('"', start)
    if (end === -1) break
    const blob = end - start < MIN_BASE64_CHARS ? undefined : decoded(text.slice(start, end))
    if (blob !== undefined) {
      literals.push(text.slice(done, start))
      blobs.push(blob)
      done = end
    }
    head = text.indexOf(BASE64_HEAD, end)
  }
  return blobs.length === 0 ? undefined : { literals: [...literals, text.slice(done)], blobs }
}

/** @returns the text that {@link cutBlobs} cut */
export function joinBlobs({ literals, blobs }: CutText): string {
  return literals.map((literal, place) => literal + (blobs[place]?.toString('base64') ?? '')).join('')
}

/** @returns undefined where the bytes would not give the same digits again, as they do not of base64url or without padding */
function decoded(base64: string): Buffer | undefined {
  const bytes = Buffer.from(base64, 'base64')
  return bytes.toString('base64') === base64 ? bytes : undefined
}
