/**
 * The storage of echoes: assistant messages in which an agent sends the completion of a turn back. An echo is stored as
 * the text around the completion and the names of the completion's parts, so that no completion is stored twice.
 * Expansion restores the echo byte for byte, with any order of keys and any other fields.
 */

/** The parts of a completion that an echo may contain. */
export interface CompletionParts {
  completionText: string | null
  reasoning: string | null
  /** A JSON array, or null. */
  toolCalls: string | null
}

/** Shorter parts are not replaced, since their names in the template take almost as much space. */
const MIN_PART_CHARS = 24

/** The minimum saving of an echo, below which the message is stored unchanged. */
const MIN_SAVED_CHARS = 64

/**
 * Returns the template of `message`: literals at even indices, names of the completion's parts at odd ones; undefined
 * if it repeats too little of this completion.
 */
export function createEchoTemplate(message: string, completion: CompletionParts): string | undefined {
  let chunks = [message]
  for (const [name, part] of toParts(completion)) {
    if (part.length >= MIN_PART_CHARS) chunks = spliceFirst(chunks, name, part)
  }
  const template = JSON.stringify(chunks)
  const saves = chunks.length > 1 && message.length - template.length >= MIN_SAVED_CHARS
  return saves && expandEcho(template, completion) === message ? template : undefined
}

/**
 * Restores an echo.
 * @throws Error if the template names a part that the completion lacks: the database is damaged
 */
export function expandEcho(template: string, completion: CompletionParts): string {
  const parts = new Map(toParts(completion))
  const chunks = JSON.parse(template) as string[]
  const expanded = chunks.map((chunk, index) => (index % 2 === 0 ? chunk : parts.get(chunk)))
  if (expanded.includes(undefined)) throw new Error('an echo names a part that its completion lacks')
  return expanded.join('')
}

/** Replaces the first occurrence of `part` in the literals. */
function spliceFirst(chunks: string[], name: string, part: string): string[] {
  for (let index = 0; index < chunks.length; index += 2) {
    const literal = chunks[index]!
    const offset = literal.indexOf(part)
    if (offset === -1) continue
    return chunks.toSpliced(index, 1, literal.slice(0, offset), name, literal.slice(offset + part.length))
  }
  return chunks
}

/**
 * Returns the parts as JSON, as they are in a message. A value is listed before those that it contains, so that it is
 * replaced as one part.
 */
function toParts({ completionText, reasoning, toolCalls }: CompletionParts): [string, string][] {
  const parts: [string, string][] = []
  if (completionText !== null) {
    parts.push(['content', JSON.stringify(completionText)])
    parts.push(['content_trimmed', JSON.stringify(completionText.trim())])
  }
  // Listed twice: responses contain the reasoning in two fields, and agents send both back.
  if (reasoning !== null) {
    const part: [string, string] = ['reasoning', JSON.stringify(reasoning)]
    parts.push(part, part)
  }
  if (toolCalls !== null) parts.push(['tool_calls', toolCalls], ...getArguments(toolCalls))
  return parts
}

function getArguments(toolCalls: string): [string, string][] {
  const calls: unknown = JSON.parse(toolCalls)
  if (!Array.isArray(calls)) return []
  return calls.flatMap((call, index): [string, string][] => {
    const text: unknown = call?.function?.arguments
    return typeof text === 'string' ? [[`arguments.${index}`, JSON.stringify(text)]] : []
  })
}
