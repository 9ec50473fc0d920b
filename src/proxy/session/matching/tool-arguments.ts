/** The arguments of a tool call, compared by value: clients parse and reserialize them. */
import { isRecord } from '../../../base/json.ts'
import { weigh } from '../../../protocol/json/json-weight.ts'
import { toCanonicalJson } from './canonical-json.ts'

export interface ToolArguments {
  /** Canonical JSON; for arguments that are not JSON, the trimmed text. */
  readonly text: string
  /** Whether the arguments are not a JSON object: a client that must send an object replaces them. */
  readonly malformed: boolean
}

/** The maximum number of objects, lists and members to compare: parsing and sorting a million of them takes seconds. */
const MAX_VALUES = 20_000

/** Texts up to this length cannot contain more than {@link MAX_VALUES} values. */
const LIGHT_CHARS = 2 * MAX_VALUES

const NONE: ToolArguments = { text: '{}', malformed: false }

/**
 * Reads the arguments of a tool call.
 * @param written the field of a message: a string by the specification, an object from some clients, or absent
 */
export function readArguments(written: unknown): ToolArguments {
  if (written === undefined || written === null) return NONE
  // Serialize and parse, so that raw numbers are compared as numbers, as they are in text.
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
 * Returns whether `echoed` is a client's echo of `sampled`. Clients send malformed arguments as `{}` or repaired. Each
 * word of a repair occurs in the sampled text. Arguments with other words are an edit.
 */
export function isArgumentsEcho(sampled: ToolArguments, echoed: ToolArguments): boolean {
  if (sampled.text === echoed.text) return true
  if (!sampled.malformed || echoed.malformed) return false
  const sampledText = sampled.text.toLowerCase()
  return extractWords(echoed.text).every((word) => sampledText.includes(word))
}

/** Extracts lower-case words of letters and digits: repairs change quotes, escapes, commas, `True` and `None`. */
function extractWords(json: string): string[] {
  const words =
    json
      .replace(/\\(?:u\w{4}|.)/g, ' ')
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu) ?? []
  return words.filter((word) => word !== 'null')
}
