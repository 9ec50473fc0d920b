/**
 * Custom (freeform) tools. Their input is text of any form, for example Codex's patches, but models call functions with
 * JSON. A custom tool is therefore shown to the model as a function with one string argument, `input`. The text is
 * extracted from the JSON for the agent, and wrapped again when the agent's next request contains it.
 *
 * A model may sample arguments of another form. The agent then receives them unchanged as the input, with a mark in the
 * call id, by which its echo is converted back to the sampled text.
 */

const ARGUMENT = 'input'
const RAW_MARK = ':raw'

export const FREEFORM_PARAMETERS = {
  type: 'object',
  properties: { [ARGUMENT]: { type: 'string', description: 'The input of the tool, as free text' } },
  required: [ARGUMENT],
  additionalProperties: false,
}

/** Returns the call id that the agent receives: the engine's, with a mark if the input is raw. */
export function toFreeformCallId(callId: string, isRaw: boolean): string {
  return isRaw ? callId + RAW_MARK : callId
}

/** Returns the engine's call id, without the mark. */
export function toModelCallId(freeformId: string): string {
  return freeformId.endsWith(RAW_MARK) ? freeformId.slice(0, -RAW_MARK.length) : freeformId
}

/** Returns the arguments that the model sampled for this input. */
export function getFreeformArguments(freeformId: string, input: string): string {
  return freeformId.endsWith(RAW_MARK) ? input : JSON.stringify({ [ARGUMENT]: input })
}

const HEAD = /^\s*\{\s*"input"\s*:\s*"/
const HEAD_WITHOUT_SPACE = '{"input":"'
/**
 * The next part of a JSON string: plain text, an escape, the start of an invalid escape, or the closing quote. An
 * incomplete escape does not match.
 */
const STRING_CHUNK = /[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]|\\u(?=.{4})|"/sy
const ESCAPES: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/**
 * A reader that extracts the input from a custom tool's arguments while the model samples them, in time linear in their
 * length.
 */
export class FreeformReader {
  /**
   * The state of reading. `head`: the form of the arguments is not known yet; `string` and `tail`: they have the
   * expected form, and the input has not ended, or has; `raw`: they have another form.
   */
  state: 'head' | 'string' | 'tail' | 'raw' = 'head'
  input = ''
  #pending = ''
  /**
   * The first half of a surrogate pair that is split between two chunks. It is withheld, because half a character
   * cannot be encoded as UTF-8.
   */
  #half = ''

  get isRaw(): boolean {
    return this.state === 'raw'
  }

  /** Returns the text that a chunk of the arguments adds to the input. */
  add(chunk: string): string {
    if (this.state === 'tail') return ''
    this.#pending += chunk
    // White space alone does not show the form, and a model may sample any amount of it.
    if (this.state === 'head' && /\S/.test(chunk)) this.#readHead()
    return this.#emit(
      this.state === 'string' ? this.#readString() : this.state === 'raw' ? this.#takePending() : '',
    )
  }

  /** Ends the arguments. @returns the rest of the input */
  end(): string {
    if (this.state === 'head') this.state = 'raw'
    const rest = this.#half + (this.state === 'tail' ? '' : this.#takePending())
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

  #takePending(): string {
    const rest = this.#pending
    this.#pending = ''
    return rest
  }

  #emit(added: string): string {
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
