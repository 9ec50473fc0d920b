/** Objects as JSON, with a member that is there as JSON already: long conversations and prompts are not written again. */

const OBJECT_END = Buffer.from('}')
const [LIST, LIST_END] = [Buffer.from('['), Buffer.from(']')]

/**
 * An object as JSON, in UTF-8, with one more member, a list.
 * @param pieces the JSON of its elements, with commas between them
 */
export function jsonWithList(
  object: Record<string, unknown>,
  field: string,
  pieces: readonly Buffer[],
): Buffer {
  return Buffer.concat([Buffer.from(jsonUpTo(object, field)), LIST, ...pieces, LIST_END, OBJECT_END])
}

function jsonUpTo(object: Record<string, unknown>, field: string): string {
  const members = JSON.stringify(object).slice(0, -1)
  return `${members}${members === '{' ? '' : ','}${JSON.stringify(field)}:`
}
