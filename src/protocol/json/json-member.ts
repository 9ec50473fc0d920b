/**
 * Serializes objects some of whose members are JSON already: long conversations and prompts are not serialized again.
 */

/** The JSON of a list's elements in chunks, separated by commas. */
type ListJson = readonly Buffer[]

/** Returns the elements of a list's JSON in UTF-8. A copy: a kept text need not keep these bytes in memory. */
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
  // The bytes between two lists form one chunk: each chunk is a separate write, also to a socket.
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
