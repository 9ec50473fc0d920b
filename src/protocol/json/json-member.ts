/** Objects as JSON, with members that are there as JSON already: long conversations and prompts are not written again. */

/** The JSON of a list's elements, with commas between them, in pieces. */
type ListJson = readonly Buffer[]

/** Of a list's JSON, the elements in UTF-8. A copy: where the text is kept, these bytes need not be. */
export function encodeElements(listJson: string): Buffer {
  return Buffer.from(listJson.slice(1, -1))
}

/**
 * An object as JSON, in UTF-8, with more members, which are lists.
 * @returns in pieces, those of the lists as they are: no copy of them is made
 */
export function toJsonChunks(
  object: Record<string, unknown>,
  lists: Readonly<Record<string, ListJson>>,
): Buffer[] {
  const pieces: Buffer[] = []
  // What stands between two lists is one piece: each is a write of its own, to a socket as well.
  let between = JSON.stringify(object).slice(0, -1)
  let isFirst = between === '{'
  for (const [field, list] of Object.entries(lists)) {
    pieces.push(Buffer.from(`${between}${isFirst ? '' : ','}${JSON.stringify(field)}:[`), ...list)
    between = ']'
    isFirst = false
  }
  pieces.push(Buffer.from(`${between}}`))
  return pieces
}
