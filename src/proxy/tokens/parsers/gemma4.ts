/**
 * Gemma 4's tool calls: `<|tool_call>call:f{a:<|"|>text<|"|>,n:5,l:[1,<|"|>x<|"|>],m:{k:true}}<tool_call|>`, reasoning
 * in `<|channel>thought\n…<channel|>`. Strings are delimited by a special token, which cannot be escaped; other values
 * have no quotes.
 * Sources: the model's chat template; vLLM's `parser/gemma4.py`; SGLang's `gemma4_detector.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockOptions, type BlockResult, createBlockFamily } from './block-parser.ts'
import { SCALAR } from './json-scanner.ts'
import { getTypes, readParameterSchemas, toJsonValue } from './text-arguments.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const QUOTE = '<|"|>'
const CLOSE = '<tool_call|>'
const CLOSES = new MarkerSet([CLOSE])
/** The maximum nesting depth of arguments, which is beyond that of any tool. */
const MAX_DEPTH = 100

export const gemma4 = createBlockFamily('gemma4', [QUOTE], {
  reasoning: { open: '<|channel>thought\n', close: '<channel|>', callEndsIt: true },
  call: { opens: ['<|tool_call>'], close: CLOSE, read: readCall },
})

function* readCall(reader: TextReader, { tools }: BlockOptions): GrammarStep<BlockResult> {
  const { text } = yield* reader.upTo(CLOSES)
  const head = /^\s*(?:call)?:\s*([\w.-]+)\s*(?=\{)/.exec(text)
  if (head === null) return 'malformed'
  const name = head[1]!
  const written = new ArgumentsReader(text, head[0].length, readParameterSchemas(name, tools)).readAll()
  return written === undefined ? 'malformed' : [{ name, arguments: written }]
}

/** Thrown by {@link ArgumentsReader} for text that is not a tool call's arguments. */
class ArgumentsSyntaxError extends Error {}

/** A converter of a tool call's arguments from Gemma 4's notation to JSON. */
class ArgumentsReader {
  readonly #text: string
  readonly #schemas: ReturnType<typeof readParameterSchemas>
  #at: number
  #depth = 0

  constructor(text: string, index: number, schemas: ReturnType<typeof readParameterSchemas>) {
    this.#text = text
    this.#at = index
    this.#schemas = schemas
  }

  /** Converts the complete text. @returns JSON; undefined if the text is not a single object */
  readAll(): string | undefined {
    try {
      const json = this.#value('')
      return this.#text.slice(this.#at).trim() === '' ? json : undefined
    } catch (error) {
      if (error instanceof ArgumentsSyntaxError) return undefined
      throw error
    }
  }

  #value(key: string): string {
    if (this.#text.startsWith(QUOTE, this.#at)) return JSON.stringify(this.#string())
    const opening = this.#text[this.#at]
    if (opening !== '{' && opening !== '[') return this.#bare(key)
    if (++this.#depth > MAX_DEPTH) throw new ArgumentsSyntaxError()
    this.#at++
    const json = opening === '{' ? `{${this.#items('}')}}` : `[${this.#items(']')}]`
    this.#depth--
    return json
  }

  #items(close: '}' | ']'): string {
    const items: string[] = []
    for (;;) {
      this.#skip(/[\s,]*/y)
      if (this.#at >= this.#text.length) throw new ArgumentsSyntaxError()
      if (this.#text[this.#at] === close) {
        this.#at++
        return items.join(', ')
      }
      const key = close === '}' ? this.#key() : ''
      const value = this.#value(key)
      items.push(close === '}' ? `${JSON.stringify(key)}: ${value}` : value)
    }
  }

  #key(): string {
    const key = this.#text.startsWith(QUOTE, this.#at) ? this.#string() : this.#skip(/[^:{}[\],]*/y).trim()
    this.#skip(/\s*/y)
    if (this.#text[this.#at] !== ':') throw new ArgumentsSyntaxError()
    this.#at++
    this.#skip(/\s*/y)
    return key
  }

  #string(): string {
    const start = this.#at + QUOTE.length
    const end = this.#text.indexOf(QUOTE, start)
    if (end === -1) throw new ArgumentsSyntaxError()
    this.#at = end + QUOTE.length
    return this.#text.slice(start, end)
  }

  #bare(key: string): string {
    const text = this.#skip(/[^,}\]]*/y).trim()
    // The next character is a `}` inside a list, which has no value before it.
    if (text === '' && key === '') throw new ArgumentsSyntaxError()
    const types = this.#depth === 1 ? getTypes(this.#schemas[key]) : []
    if (types.length > 0) return toJsonValue(text, types)
    // The template formats null with Python's `str`.
    if (text === 'None') return 'null'
    return SCALAR.test(text) ? text : JSON.stringify(text)
  }

  #skip(run: RegExp): string {
    run.lastIndex = this.#at
    const [found] = run.exec(this.#text)!
    this.#at += found.length
    return found
  }
}
