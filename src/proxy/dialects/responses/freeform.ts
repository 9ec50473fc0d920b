/**
 * Custom (freeform) tools. Their input is text of any form, for example Codex's patches, but models call functions with
 * JSON. So a custom tool is shown to the model as a function with one string argument, `input`; the text is extracted
 * from the JSON for the agent, and wrapped again in the agent's next request.
 *
 * A model may sample arguments of another form. Their text is then the input unchanged, and the call id is marked: only
 * then can the agent's echo be converted back to what was sampled.
 */

const ARGUMENT = 'input'
const RAW_MARK = ':raw'

export const FREEFORM_PARAMETERS = {
  type: 'object',
  properties: { [ARGUMENT]: { type: 'string', description: 'The input of the tool, as free text' } },
  required: [ARGUMENT],
  additionalProperties: false,
}

/** Returns the call id for the agent. */
export function toFreeformCallId(callId: string, isRaw: boolean): string {
  return isRaw ? callId + RAW_MARK : callId
}

/** Returns the engine's call id. */
export function toModelCallId(freeformId: string): string {
  return freeformId.endsWith(RAW_MARK) ? freeformId.slice(0, -RAW_MARK.length) : freeformId
}

/** Returns the arguments that the model sampled for this input. */
export function getFreeformArguments(freeformId: string, input: string): string {
  return freeformId.endsWith(RAW_MARK) ? input : JSON.stringify({ [ARGUMENT]: input })
}

const HEAD = /^\s*\{\s*"input"\s*:\s*"/
const HEAD_WITHOUT_SPACE = '{"input":"'
/** Plain text, an escape, the start of an invalid escape, or the end; an incomplete escape does not match. */
const STRING_CHUNK = /[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]|\\u(?=.{4})|"/sy
const ESCAPES: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/** Extracts the input from a custom tool's arguments while the model samples them; linear in their length. */
export class FreeformReader {
  /** `head`: it is not yet known whether the arguments have the expected form. */
  state: 'head' | 'string' | 'tail' | 'raw' = 'head'
  input = ''
  #pending = ''
  /** The first half of a surrogate pair that two chunks split: half a character has no UTF-8. */
  #half = ''

  get isRaw(): boolean {
    return this.state === 'raw'
  }

  /** @returns the text that this chunk of the arguments adds to the input */
  add(chunk: string): string {
    if (this.state === 'tail') return ''
    this.#pending += chunk
    // White space alone decides nothing, and a model may sample any amount of it.
    if (this.state === 'head' && /\S/.test(chunk)) this.#readHead()
    return this.#give(this.state === 'string' ? this.#readString() : this.state === 'raw' ? this.#rest() : '')
  }

  /** Ends the arguments. @returns the rest of the input */
  end(): string {
    if (this.state === 'head') this.state = 'raw'
    const rest = this.#half + (this.state === 'tail' ? '' : this.#rest())
    this.#half = ''
    this.input += rest
    return rest
  }

  #readHead(): void {
    const head = HEAD.exec(this.#pending)?.[0]
    if (head !== undefined) {
      this.state = 'string'
      this.#pending = this.#pending.slice(head.length)
      return
    }
    const start = this.#pending.replace(/\s/g, '')
    if (start === HEAD_WITHOUT_SPACE || !HEAD_WITHOUT_SPACE.startsWith(start)) this.state = 'raw'
  }

  /** Reads to the closing quote, or to an escape that is not complete yet. */
  #readString(): string {
    let text = ''
    let index = 0
    while (this.state === 'string') {
      STRING_CHUNK.lastIndex = index
      const chunk = STRING_CHUNK.exec(this.#pending)?.[0]
      if (chunk === undefined) break
      index += chunk.length
      if (chunk === '"') this.state = 'tail'
      else text += decodeEscape(chunk)
    }
    this.#pending = this.#pending.slice(index)
    return text
  }

  #rest(): string {
    const rest = this.#pending
    this.#pending = ''
    return rest
  }

  #give(added: string): string {
    const text = this.#half + added
    this.#half = /[\ud800-\udbff]$/.exec(text)?.[0] ?? ''
    const decoded = text.slice(0, text.length - this.#half.length)
    this.input += decoded
    return decoded
  }
}

function decodeEscape(chunk: string): string {
  if (chunk[0] !== '\\') return chunk
  if (chunk.length === 6) return String.fromCharCode(Number.parseInt(chunk.slice(2), 16))
  return ESCAPES[chunk[1]!] ?? chunk.slice(1)
}
