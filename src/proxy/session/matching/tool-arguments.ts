/** The arguments of a tool call. They are compared by value, because clients parse and reserialize them. */
import { isRecord } from '../../../base/json.ts'
import { weigh } from '../../../protocol/json/json-weight.ts'
import { toCanonicalJson } from './canonical-json.ts'

/** The arguments of one tool call in comparable form. */
export interface ToolArguments {
  /** Canonical JSON; the trimmed text if the arguments are not JSON or too large to be compared by value. */
  readonly text: string
  /**
   * Whether the arguments are too large to be compared by value, or are not a JSON object. A client that must send an
   * object replaces arguments that are not one.
   */
  readonly malformed: boolean
}

/** The maximum number of values to compare: parsing and sorting a million of them takes seconds. */
const MAX_VALUES = 20_000

/** A length up to which a text cannot contain more than {@link MAX_VALUES} values. */
const LIGHT_CHARS = 2 * MAX_VALUES

/** The maximum number of steps of a search for parts of words; these take some milliseconds. */
const MAX_SEARCH_STEPS = 5_000_000

/** The characters of a word that one step at a position covers: V8's search may compare all of them at each position. */
const STEP_CHARS = 16

const NONE: ToolArguments = { text: '{}', malformed: false }

/**
 * Reads the arguments of a tool call.
 * @param written the field of a message: a string according to the specification, an object from some clients, or
 *   absent
 */
export function readArguments(written: unknown): ToolArguments {
  if (written === undefined || written === null) return NONE
  // Serializing and parsing converts raw numbers to numbers, as in arguments that are text.
  if (typeof written !== 'string') return readValue(JSON.parse(JSON.stringify(written)))
  const text = written.trim()
  if (text === '') return NONE
  if (isHeavy(text)) return { text, malformed: true }
  try {
    return readValue(JSON.parse(text))
  } catch {
    // The text is not JSON or is nested too deeply to serialize.
    return { text, malformed: true }
  }
}

function isHeavy(text: string): boolean {
  if (text.length <= LIGHT_CHARS) return false
  const { nodes, commas } = weigh(Buffer.from(text))
  return nodes + commas > MAX_VALUES
}

function readValue(value: unknown): ToolArguments {
  return { text: toCanonicalJson(value), malformed: !isRecord(value) }
}

/**
 * Returns whether `echoed` is a client's echo of `sampled`. Clients replace malformed arguments by `{}` or repair them.
 * All words of a repair occur in the sampled text; arguments with other words are an edit.
 */
export function isArgumentsEcho(sampled: ToolArguments, echoed: ToolArguments): boolean {
  if (sampled.text === echoed.text) return true
  if (!sampled.malformed || echoed.malformed) return false
  const unknown = new Set(extractWords(echoed.text))
  for (const word of extractWords(sampled.text)) unknown.delete(word)
  return containsAll(sampled.text.toLowerCase(), unknown)
}

/** Returns whether all words occur in the text, also as parts of its words; false if the search would block. */
function containsAll(text: string, words: ReadonlySet<string>): boolean {
  let steps = 0
  for (const { length } of words) steps += text.length * Math.ceil(length / STEP_CHARS)
  return steps <= MAX_SEARCH_STEPS && [...words].every((word) => text.includes(word))
}

/**
 * Extracts words of letters and digits in lower case. `null` is omitted, because a repair may write it for `None`;
 * repairs also change quotes, escapes and commas.
 */
function extractWords(json: string): string[] {
  const words =
    json
      .replace(/\\(?:u\w{4}|.)/g, ' ')
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu) ?? []
  return words.filter((word) => word !== 'null')
}
