/** Objects as JSON, with members that are there as JSON already: long conversations and prompts are not written again. */

const OBJECT_END = Buffer.from('}')
const [LIST, LIST_END] = [Buffer.from('['), Buffer.from(']')]

/** The JSON of a list's elements, with commas between them, in pieces. */
export type ListJson = readonly Buffer[]

/**
 * An object as JSON, in UTF-8, with more members, which are lists.
 * @returns in pieces, those of the lists as they are: no copy of them is made
 */
export function jsonPieces(
  object: Record<string, unknown>,
  lists: Readonly<Record<string, ListJson>>,
): Buffer[] {
  const members = JSON.stringify(object).slice(0, -1)
  const pieces: Buffer[] = [Buffer.from(members)]
  let isFirst = members === '{'
  for (const [field, list] of Object.entries(lists)) {
    pieces.push(Buffer.from(`${isFirst ? '' : ','}${JSON.stringify(field)}:`), LIST, ...list, LIST_END)
    isFirst = false
  }
  pieces.push(OBJECT_END)
  return pieces
}
