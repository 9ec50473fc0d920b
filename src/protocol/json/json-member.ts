/**
 * Serializes objects with members that are JSON already, so that long conversations and prompts are not serialized
 * again.
 */

/** The JSON of a list's elements in chunks, separated by commas. */
type ListJson = readonly Buffer[]

/** Returns the JSON of a list in UTF-8, without the brackets. */
export function encodeElements(listJson: string): Buffer {
  return Buffer.from(listJson.slice(1, -1))
}

/**
 * Serializes an object to JSON in UTF-8, with additional members that are lists.
 * @returns chunks, with those of the lists included without a copy
 */
export function toJsonChunks(
  object: Record<string, unknown>,
  lists: Readonly<Record<string, ListJson>>,
): Buffer[] {
  const chunks: Buffer[] = []
  // The bytes between two lists form one chunk, because each chunk causes a separate write to the socket.
  let between = JSON.stringify(object).slice(0, -1)
  let isFirst = between === '{'
  for (const [field, list] of Object.entries(lists)) {
    chunks.push(Buffer.from(`${between}${isFirst ? '' : ','}${JSON.stringify(field)}:[`), ...list)
    between = ']'
    isFirst = false
  }
  chunks.push(Buffer.from(`${between}}`))
  return chunks
}
