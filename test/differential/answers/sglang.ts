/**
 * Compares what SGLang's own parsers read in random texts of every family that they support (complete, cut, broken)
 * with what the proxy's parsers read, at once and one character at a time. Prints a table by kind; fails where a
 * complete text is read differently.
 *
 *  python test/unit/proxy/tokens/parsers/fixtures/make.py FOLDER 20000 | node test/differential/answers/sglang.ts
 * [--show 3]
 */

import { createInterface } from 'node:readline'
import { isDeepStrictEqual, parseArgs } from 'node:util'
import type { Tool } from '../../../src/protocol/canonical/messages.ts'
import { findParser } from '../../../src/proxy/tokens/parsers/choose-parser.ts'
import { mergeDeltas, type ParsedOutput, parseWhole } from '../../helpers/parsed-output.ts'

interface Line {
  parser: string
  detector: string
  kind: 'whole' | 'cut' | 'broken'
  text: string
  content: string
  calls: { name: string; arguments: unknown }[]
}

const { values: options } = parseArgs({ options: { show: { type: 'string', default: '0' } } })
const TYPES = {
  text: 'string',
  count: 'integer',
  ratio: 'number',
  on: 'boolean',
  list: 'array',
  map: 'object',
}
const properties = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [name, { type }]))
const tools: Tool[] = ['f', 'get_it'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties } },
}))
/** Families whose strings SGLang strips, although their templates write them verbatim. */
const STRIPPED =
  /DeepSeekV32|DeepSeekV4|MinimaxM[23]|MiniCPM5|Qwen3Coder|MiMo|Glm4|Hunyuan|Step3Detector|DotsTool/

/**
 * Families in which SGLang reads `null` as null where the schema says string; vLLM follows the schema, as the proxy
 * does.
 */
const NULLS = /Qwen3Coder|MinimaxM2|MiMo|DotsTool/
/** Families in which SGLang removes quotes as of a Python string; vLLM keeps the text verbatim, as the proxy does. */
const UNQUOTED = /Glm4/

const table: Record<string, Record<string, number>> = {}
for await (const json of createInterface({ input: process.stdin })) compare(JSON.parse(json) as Line)
console.table(table)
if (Object.values(table).some((row) => row['whole: differs'] || row['cut up: differs'])) process.exitCode = 1

function compare(line: Line): void {
  const { parser, detector, kind, text } = line
  const create = () => findParser(parser).create({ tools, makeToolCallId: () => 'id' })
  const found = parseWhole(create(), text)
  const pieces = create()
  const deltas = [...text].map((character) => pieces.push(character))
  if (!isDeepStrictEqual(mergeDeltas([...deltas, pieces.finish()]), found)) count(line, 'cut up: differs')
  const calls = getCalls(found)
  const asTheirs = (value: unknown) => eachString(value, (text) => asReadBy(detector, text))
  const isSame = isDeepStrictEqual(asTheirs(calls), asTheirs(line.calls))
  // The proxy shows the text of an invalid call; SGLang drops some of it.
  const isShown = kind !== 'whole' || found.content.trim() === line.content.trim()
  if (isSame && isShown) count(line, `${kind}: same`)
  else if (kind === 'whole') count(line, 'whole: differs')
  else if (calls.length > line.calls.length) count(line, `${kind}: more calls here`)
  else if (calls.length < line.calls.length) count(line, `${kind}: fewer calls here`)
  else count(line, `${kind}: other calls`)
}

function count({ detector, text, content, calls, parser }: Line, what: string): void {
  const row = table[detector] ?? {}
  table[detector] = row
  row[what] = (row[what] ?? 0) + 1
  if (what.endsWith('same') || row[what] > Number(options.show)) return
  const found = parseWhole(findParser(parser).create({ tools, makeToolCallId: () => 'id' }), text)
  console.log(
    detector,
    what,
    JSON.stringify({
      text,
      theirs: { content, calls },
      ours: { content: found.content, calls: getCalls(found) },
    }),
  )
}

function getCalls({ toolCalls }: ParsedOutput) {
  return toolCalls.map(({ function: call }) => ({
    name: call.name,
    arguments: JSON.parse(call.arguments) as unknown,
  }))
}

function asReadBy(detector: string, text: string): string | null {
  if (NULLS.test(detector) && text.trim().toLowerCase() === 'null') return null
  const bare = UNQUOTED.test(detector) ? text.replace(/^(\\?['"])(.*)\1$/s, '$2') : text
  return STRIPPED.test(detector) ? bare.trim() : bare
}

function eachString(value: unknown, change: (text: string) => string | null): unknown {
  if (typeof value === 'string') return change(value)
  if (Array.isArray(value)) return value.map((inner) => eachString(inner, change))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, eachString(inner, change)]))
}
