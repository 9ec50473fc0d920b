/**
 * Scans a JSON value character by character in a text that arrives in parts. It fails at the first character that
 * cannot be part of the value, and locates the members of the outermost object. Tool arguments are passed to the agent
 * as they were written, because parsing and serializing would change spacing, the order of keys, and numbers.
 * Source: RFC 8259.
 */
import type { Scanner } from './text-reader.ts'

/** The position in the JSON grammar. */
type State =
  | 'value'
  | 'first item'
  | 'first key'
  | 'key'
  | 'colon'
  | 'after value'
  | 'scalar'
  | 'string'
  | 'escape'
  | 'done'
  | 'failed'

/** The offsets of a member of the outermost object, relative to the beginning of the value. */
interface MemberPosition {
  key: number
  keyEnd: number
  value: number
  valueEnd: number
}

/** Matches a number, a boolean or null. */
export const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/
const IN_SCALAR = /[-+.\w]/
const SPACES = ' \t\n\r'
const ESCAPED = '"\\/bfnrtu'
const HEX = /[\da-fA-F]/

/** A scanner for one value, which must be an object, an array or a string. */
export class JsonScanner implements Scanner {
  #state: State = 'value'
  /** The opening brackets (`{` or `[`) of the open containers, the outermost first. */
  readonly #open: string[] = []
  #isKey = false
  #scalar = ''
  #hexDigitsMissing = 0
  /** The number of characters read. */
  #length = 0
  #members: MemberPosition[] = []

  get isOpen(): boolean {
    return this.#state !== 'done' && this.#state !== 'failed'
  }

  /** Whether the text that was read is a complete object, array or string. */
  get isComplete(): boolean {
    return this.#state === 'done'
  }

  read(text: string, from: number): number {
    for (let index = from; index < text.length; index++, this.#length++) {
      this.#step(text[index]!)
      if (!this.isOpen) {
        const isLastOfValue = this.#state === 'done'
        if (isLastOfValue) this.#length++
        return isLastOfValue ? index + 1 : index
      }
    }
    return text.length
  }

  /**
   * Returns the text of each member's value by key; of equal keys, the last one is used.
   * @param written the text that was read
   */
  getMembers(written: string): Map<string, string> {
    return new Map(
      this.#members.map(({ key, keyEnd, value, valueEnd }) => [
        JSON.parse(written.slice(key, keyEnd)) as string,
        written.slice(value, valueEnd),
      ]),
    )
  }

  #step(char: string): void {
    if (this.#state === 'string') this.#inString(char)
    else if (this.#state === 'escape') this.#inEscape(char)
    else if (this.#state === 'scalar') this.#inScalar(char)
    else if (!SPACES.includes(char)) this.#between(char)
  }

  #inString(char: string): void {
    if (char === '"') this.#endString()
    else if (char === '\\') this.#state = 'escape'
    else if (char < ' ') this.#state = 'failed'
  }

  #inEscape(char: string): void {
    if (this.#hexDigitsMissing > 0) {
      if (!HEX.test(char)) this.#state = 'failed'
      else if (--this.#hexDigitsMissing === 0) this.#state = 'string'
    } else if (char === 'u') {
      this.#hexDigitsMissing = 4
    } else {
      this.#state = ESCAPED.includes(char) ? 'string' : 'failed'
    }
  }

  #endString(): void {
    if (this.#isKey) {
      if (this.#open.length === 1) this.#members.at(-1)!.keyEnd = this.#length + 1
      this.#state = 'colon'
    } else {
      this.#endValue(this.#length + 1)
    }
  }

  #inScalar(char: string): void {
    if (IN_SCALAR.test(char)) {
      this.#scalar += char
    } else if (!SCALAR.test(this.#scalar)) {
      this.#state = 'failed'
    } else {
      this.#endValue(this.#length)
      this.#step(char)
    }
  }

  #between(char: string): void {
    const isEmpty =
      (this.#state === 'first key' && char === '}') || (this.#state === 'first item' && char === ']')
    if (isEmpty) this.#close(char)
    else if (this.#state === 'first key' || this.#state === 'key') this.#beginKey(char)
    else if (this.#state === 'colon') this.#state = char === ':' ? 'value' : 'failed'
    else if (this.#state === 'after value') this.#afterValue(char)
    else this.#beginValue(char)
  }

  #beginKey(char: string): void {
    if (char !== '"') {
      this.#state = 'failed'
      return
    }
    if (this.#open.length === 1) {
      this.#members.push({ key: this.#length, keyEnd: 0, value: 0, valueEnd: 0 })
    }
    this.#isKey = true
    this.#state = 'string'
  }

  #beginValue(char: string): void {
    if (this.#open.length === 1 && this.#open[0] === '{') this.#members.at(-1)!.value = this.#length
    this.#isKey = false
    if (char === '{' || char === '[') {
      this.#open.push(char)
      this.#state = char === '{' ? 'first key' : 'first item'
    } else if (char === '"') {
      this.#state = 'string'
    } else if (this.#open.length > 0 && IN_SCALAR.test(char)) {
      this.#scalar = char
      this.#state = 'scalar'
    } else {
      // A scalar outside a container is not a tool call, and only the end of the text would show that it is complete.
      this.#state = 'failed'
    }
  }

  #afterValue(char: string): void {
    const container = this.#open.at(-1)
    if (char === ',') this.#state = container === '{' ? 'key' : 'value'
    else if (char === '}' || char === ']') this.#close(char)
    else this.#state = 'failed'
  }

  #close(char: string): void {
    if (this.#open.pop() === (char === '}' ? '{' : '[')) this.#endValue(this.#length + 1)
    else this.#state = 'failed'
  }

  #endValue(end: number): void {
    this.#state = this.#open.length === 0 ? 'done' : 'after value'
    if (this.#open.length === 1 && this.#open[0] === '{') this.#members.at(-1)!.valueEnd = end
  }
}
