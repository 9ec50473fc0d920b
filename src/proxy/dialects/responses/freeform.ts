/**
 * Custom (freeform) tools. Their input is text of any form, Codex's patches for instance; models call functions with
 * JSON. So a custom tool is shown to the model as a function of one string argument, `input`, and the text is taken
 * out of the JSON on the way to the agent and put back into it on the way in.
 *
 * A model may write arguments of another form. Their text is then the input as it stands, and the call id says so:
 * only then can the agent's echo become again what the model wrote.
 */

const ARGUMENT = 'input'
const RAW_MARK = ':raw'

export const FREEFORM_PARAMETERS = {
  type: 'object',
  properties: { [ARGUMENT]: { type: 'string', description: 'The input of the tool, as free text' } },
  required: [ARGUMENT],
  additionalProperties: false,
}

/** The call id that the agent gets. */
export function freeformCallId(callId: string, isRaw: boolean): string {
  return isRaw ? callId + RAW_MARK : callId
}

/** The call id as the engine gave it. */
export function modelCallId(freeformId: string): string {
  return freeformId.endsWith(RAW_MARK) ? freeformId.slice(0, -RAW_MARK.length) : freeformId
}

/** The arguments that the model wrote for this input. */
export function freeformArguments(freeformId: string, input: string): string {
  return freeformId.endsWith(RAW_MARK) ? input : JSON.stringify({ [ARGUMENT]: input })
}

const HEAD = /^\s*\{\s*"input"\s*:\s*"/
const HEAD_WITHOUT_SPACE = '{"input":"'
/** Plain text, an escape, the start of an escape that is none, or the end; an escape that is cut apart is no piece. */
const STRING_PIECE = /[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]|\\u(?=.{4})|"/sy
const ESCAPES: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/** Takes the input out of a custom tool's arguments while the model writes them; linear in their length. */
export class FreeformReader {
  /** `head`: not known yet whether the arguments have the form they should have. */
  state: 'head' | 'string' | 'tail' | 'raw' = 'head'
  input = ''
  #pending = ''
  /** Of a character in two pieces the first: half of one has no UTF-8. */
  #half = ''

  get isRaw(): boolean {
    return this.state === 'raw'
  }

  /** @returns what this piece of the arguments adds to the input */
  add(piece: string): string {
    if (this.state === 'tail') return ''
    this.#pending += piece
    // White space alone decides nothing, and of that a model may write any amount.
    if (this.state === 'head' && /\S/.test(piece)) this.#readHead()
    return this.#give(this.state === 'string' ? this.#readString() : this.state === 'raw' ? this.#rest() : '')
  }

  /** The arguments are whole. @returns what is left of the input */
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

  /** Up to the closing quote, or to an escape that is not whole yet. */
  #readString(): string {
    let text = ''
    let at = 0
    while (this.state === 'string') {
      STRING_PIECE.lastIndex = at
      const piece = STRING_PIECE.exec(this.#pending)?.[0]
      if (piece === undefined) break
      at += piece.length
      if (piece === '"') this.state = 'tail'
      else text += unescaped(piece)
    }
    this.#pending = this.#pending.slice(at)
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
    const given = text.slice(0, text.length - this.#half.length)
    this.input += given
    return given
  }
}

function unescaped(piece: string): string {
  if (piece[0] !== '\\') return piece
  if (piece.length === 6) return String.fromCharCode(Number.parseInt(piece.slice(2), 16))
  return ESCAPES[piece[1]!] ?? piece.slice(1)
}
