/**
 * An agent sends a turn's completion back as an assistant message. Such an echo is stored as the text around the
 * completion and the names of the completion's parts, so that no completion is stored twice. Expansion restores the
 * echo byte for byte, with any order of keys and any other fields.
 */
export interface CompletionFieldNames {
  completionText: string | null
  reasoning: string | null
  /** A JSON array, or null. */
  toolCalls: string | null
}

/** Shorter parts are not replaced. */
const MIN_PART_CHARS = 24

/** The minimum saving of an echo, below which the message is stored unchanged. */
const MIN_SAVED_CHARS = 64

/**
 * Returns the template of `message`: literals at even indices, names of the completion's parts at odd ones; undefined
 * if it repeats too little of this completion.
 */
export function echoTemplate(message: string, completion: CompletionFieldNames): string | undefined {
  let pieces = [message]
  for (const [name, part] of toParts(completion)) {
    if (part.length >= MIN_PART_CHARS) pieces = spliceFirst(pieces, name, part)
  }
  const template = JSON.stringify(pieces)
  const saves = pieces.length > 1 && message.length - template.length >= MIN_SAVED_CHARS
  return saves && expandEcho(template, completion) === message ? template : undefined
}

/**
 * Restores an echo.
 * @throws Error if the template names a part that the completion lacks: the database is damaged
 */
export function expandEcho(template: string, completion: CompletionFieldNames): string {
  const parts = new Map(toParts(completion))
  const pieces = JSON.parse(template) as string[]
  const expanded = pieces.map((piece, place) => (place % 2 === 0 ? piece : parts.get(piece)))
  if (expanded.includes(undefined)) throw new Error('an echo names a part that its completion lacks')
  return expanded.join('')
}

/** Replaces the first occurrence of `part` in the literals. */
function spliceFirst(pieces: string[], name: string, part: string): string[] {
  for (let place = 0; place < pieces.length; place += 2) {
    const literal = pieces[place]!
    const at = literal.indexOf(part)
    if (at === -1) continue
    return pieces.toSpliced(place, 1, literal.slice(0, at), name, literal.slice(at + part.length))
  }
  return pieces
}

/**
 * Returns the parts as they are in a message's JSON text, largest first, so that a complete value is found before its
 * parts.
 */
function toParts({ completionText, reasoning, toolCalls }: CompletionFieldNames): [string, string][] {
  const parts: [string, string][] = []
  if (completionText !== null) {
    parts.push(['content', JSON.stringify(completionText)])
    parts.push(['content_trimmed', JSON.stringify(completionText.trim())])
  }
  // Listed twice because agents send back both of the fields that contain it in responses.
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
  return calls.flatMap((call, place): [string, string][] => {
    const text: unknown = call?.function?.arguments
    return typeof text === 'string' ? [[`arguments.${place}`, JSON.stringify(text)]] : []
  })
}
