/** The arguments of a tool call, compared as values: clients parse them and write them anew. */
import { isRecord } from '../../../base/json.ts'
import { weigh } from '../../../protocol/json/json-weight.ts'
import { canonicalJson } from './canonical-json.ts'

export interface ToolArguments {
  /** Canonical JSON; of arguments that are no JSON at all the text, without white space at its ends. */
  readonly text: string
  /** No JSON object: a client that must send one sends something else in its place. */
  readonly malformed: boolean
}

/** Of objects, lists and their members. More are compared as text: to parse and sort a million of them takes seconds. */
const MAX_VALUES = 20_000

/** Shorter texts hold no more than that. */
const LIGHT_CHARS = 2 * MAX_VALUES

const NONE: ToolArguments = { text: '{}', malformed: false }

/** @param written as it stands in a message: text by the book, an object with some clients, or nothing */
export function readArguments(written: unknown): ToolArguments {
  if (written === undefined || written === null) return NONE
  // As text would be read: numbers that were kept as they were written are compared as numbers.
  if (typeof written !== 'string') return readValue(JSON.parse(JSON.stringify(written)))
  const text = written.trim()
  if (text === '') return NONE
  if (isHeavy(text)) return { text, malformed: true }
  try {
    return readValue(JSON.parse(text))
  } catch {
    // Not JSON, or nested too deeply to be written anew.
    return { text, malformed: true }
  }
}

function isHeavy(text: string): boolean {
  if (text.length <= LIGHT_CHARS) return false
  const { nodes, commas } = weigh(Buffer.from(text))
  return nodes + commas > MAX_VALUES
}

function readValue(value: unknown): ToolArguments {
  return { text: canonicalJson(value), malformed: !isRecord(value) }
}

/**
 * Whether `echoed` is what a client made of `sampled`. Malformed arguments come back as `{}` or repaired. A repair
 * brings nothing new: each of its words is in what was sampled. Arguments that say something else are an edit.
 */
export function isArgumentsEcho(sampled: ToolArguments, echoed: ToolArguments): boolean {
  if (sampled.text === echoed.text) return true
  if (!sampled.malformed || echoed.malformed) return false
  const sampledText = sampled.text.toLowerCase()
  return extractWords(echoed.text).every((word) => sampledText.includes(word))
}

/** Letters and digits alone, in small letters: repairs change quotes, escapes and commas, `True` and `None`. */
function extractWords(json: string): string[] {
  const words =
    json
      .replace(/\\(?:u\w{4}|.)/g, ' ')
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu) ?? []
  return words.filter((word) => word !== 'null')
}
