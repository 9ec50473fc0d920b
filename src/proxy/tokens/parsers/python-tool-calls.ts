/**
 * Parses tool calls that are written as Python: `[f(a=1, b="x"), g(c={'k': True})]`.
 *
 * Templates with this format write strings between quotes without escaping their contents. Therefore a quote ends a
 * string only if Python's syntax permits the text after it, as in SGLang's `lfm2_detector.py`.
 */
import { SCALAR } from './json-scanner.ts'
import type { OutputToolCall } from './output-delta.ts'

/** Parses a list of calls with named arguments. Returns undefined if the text is anything else. */
export function readPythonCalls(text: string): OutputToolCall[] | undefined {
  return readUnlessNotPython(() => new PythonReader(text).readCalls())
}

/**
 * Parses calls that are separated by newlines or commas, without brackets around them. Returns undefined for other
 * text.
 */
export function readPythonCallLines(text: string): OutputToolCall[] | undefined {
  return readUnlessNotPython(() => new PythonReader(text.trim()).readCallLines())
}

/** Converts a Python literal to JSON. Returns undefined for other text. */
export function readPythonValue(text: string): string | undefined {
  return readUnlessNotPython(() => new PythonReader(text).readValue())
}

function readUnlessNotPython<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch (error) {
    if (error instanceof NotPythonError) return undefined
    throw error
  }
}

/** Thrown by {@link PythonReader} for text that is not in the expected format. */
class NotPythonError extends Error {}

/** The maximum nesting depth of arguments, which is beyond that of any tool. */
const MAX_DEPTH = 100
const SPACE = /\s*/y
const NAME = /[\p{L}_][\p{L}\p{N}_.-]*/uy
const ARGUMENT_NAME = /[\p{L}_][\p{L}\p{N}_]*/uy
const NUMBER = /[-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?/y
/** Matches an escape sequence with the number of a character. */
const NUMBERED = /\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U(00[01][\da-fA-F]{5}))/y
/** Matches a quote that ends a string, judging by the text after it. */
const QUOTE_END = /(['"])\s*(?=[,)\]}:]|$)/y
const CONSTANTS: Readonly<Record<string, string>> = {
  True: 'true',
  true: 'true',
  False: 'false',
  false: 'false',
  None: 'null',
  null: 'null',
}
const ESCAPES: Readonly<Record<string, string>> = {
  n: '\n',
  t: '\t',
  r: '\r',
  a: '\x07',
  b: '\b',
  f: '\f',
  v: '\v',
  '\\': '\\',
  "'": "'",
  '"': '"',
}

/** A parser for a complete text. Its methods return tool calls or JSON. */
class PythonReader {
  readonly #text: string
  #at = 0
  #depth = 0

  constructor(text: string) {
    this.#text = text
  }

  readCalls(): OutputToolCall[] {
    const calls: OutputToolCall[] = []
    this.#expect('[')
    do calls.push(this.#call())
    while (this.#has(','))
    this.#expect(']')
    this.#end()
    return calls
  }

  readCallLines(): OutputToolCall[] {
    const calls: OutputToolCall[] = []
    while (this.#at < this.#text.length) {
      calls.push(this.#call())
      this.#has(',')
    }
    if (calls.length === 0) throw new NotPythonError()
    return calls
  }

  readValue(): string {
    const json = this.#value()
    this.#end()
    return json
  }

  #end(): void {
    this.#match(SPACE)
    if (this.#at < this.#text.length) throw new NotPythonError()
  }

  #call(): OutputToolCall {
    const name = this.#name(NAME)
    this.#expect('(')
    const members = this.#list(')', () => {
      const key = this.#name(ARGUMENT_NAME)
      this.#expect('=')
      return `${JSON.stringify(key)}: ${this.#value()}`
    })
    return { name, arguments: `{${members.join(', ')}}` }
  }

  /** Reads items up to `close`, separated by commas, with an optional comma at the end. */
  #list(close: string, item: () => string): string[] {
    const items: string[] = []
    while (!this.#has(close)) {
      items.push(item())
      if (!this.#has(',')) {
        this.#expect(close)
        break
      }
    }
    return items
  }

  /** Reads a value and returns it as JSON. */
  #value(): string {
    if (++this.#depth > MAX_DEPTH) throw new NotPythonError()
    const json = this.#unboundedValue()
    this.#depth--
    return json
  }

  #unboundedValue(): string {
    if (this.#has('{')) return `{${this.#list('}', () => this.#member()).join(', ')}}`
    if (this.#has('[')) return `[${this.#list(']', () => this.#value()).join(', ')}]`
    if (this.#has('(')) return `[${this.#list(')', () => this.#value()).join(', ')}]`
    const quote = this.#text[this.#at]
    if (quote === '"' || quote === "'") return JSON.stringify(this.#string(quote))
    const number = this.#match(NUMBER)
    if (number !== undefined && number !== '') return convertPythonNumber(number)
    const constant = CONSTANTS[this.#name(ARGUMENT_NAME)]
    if (constant === undefined) throw new NotPythonError()
    return constant
  }

  #member(): string {
    this.#match(SPACE)
    const quote = this.#text[this.#at]
    if (quote !== '"' && quote !== "'") throw new NotPythonError()
    const key = this.#string(quote)
    this.#expect(':')
    return `${JSON.stringify(key)}: ${this.#value()}`
  }

  #string(quote: string): string {
    let value = ''
    for (this.#at++; this.#at < this.#text.length; this.#at++) {
      const char = this.#text[this.#at]!
      if (char === quote && this.#endsString()) {
        this.#at++
        return value
      }
      const numbered = char === '\\' ? this.#match(NUMBERED) : undefined
      if (numbered !== undefined) {
        value += String.fromCodePoint(Number.parseInt(numbered.slice(2), 16))
        this.#at--
        continue
      }
      const escaped = char === '\\' ? ESCAPES[this.#text[this.#at + 1] ?? ''] : undefined
      if (escaped !== undefined) this.#at++
      value += escaped ?? char
    }
    throw new NotPythonError()
  }

  #endsString(): boolean {
    QUOTE_END.lastIndex = this.#at
    return QUOTE_END.test(this.#text)
  }

  #name(pattern: RegExp): string {
    this.#match(SPACE)
    const name = this.#match(pattern)
    if (name === undefined) throw new NotPythonError()
    return name
  }

  #has(char: string): boolean {
    this.#match(SPACE)
    if (this.#text[this.#at] !== char) return false
    this.#at++
    this.#match(SPACE)
    return true
  }

  #expect(char: string): void {
    if (!this.#has(char)) throw new NotPythonError()
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at
    const found = pattern.exec(this.#text)?.[0]
    this.#at += found?.length ?? 0
    return found
  }
}

/** Converts a Python number to JSON, which does not permit underscores, a leading plus sign or a leading point. */
function convertPythonNumber(written: string): string {
  const plain = written
    .replaceAll('_', '')
    .replace(/^\+/, '')
    .replace(/^(-?)\./, '$10.')
  if (!SCALAR.test(plain)) throw new NotPythonError()
  return plain
}
