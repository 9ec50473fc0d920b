/**
 * Compares the proxy's parsers with SGLang's parsers on random texts (complete, cut, broken) of every family that SGLang
 * supports; the proxy parses each at once and one character at a time. Prints a table by kind; a difference in a complete
 * text fails the run, and so does an input without a complete text that both parse alike.
 *
 *  python test/unit/proxy/tokens/parsers/fixtures/make.py FOLDER 20000 | node test/differential/parsers/sglang.ts
 * [--show 3]
 */
import { createInterface } from 'node:readline'
import { isDeepStrictEqual, parseArgs } from 'node:util'
import type { Tool } from '../../../src/protocol/canonical/messages.ts'
import { findParser } from '../../../src/proxy/tokens/parsers/choose-parser.ts'
import { mergeDeltas, type ParsedOutput, parseComplete } from '../../helpers/parsed-output.ts'

/** A text, and SGLang's parse result; `make.py` writes it. */
interface Sample {
  parser: string
  detector: string
  kind: 'complete' | 'cut' | 'broken'
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
/** Families whose strings SGLang strips, although their templates contain them verbatim. */
const STRIPPED =
  /DeepSeekV32|DeepSeekV4|MinimaxM[23]|MiniCPM5|Qwen3Coder|MiMo|Glm4|Hunyuan|Step3Detector|DotsTool/

/**
 * Families in which SGLang parses `null` as null where the schema requires a string; vLLM and the proxy follow the
 * schema.
 */
const NULLS = /Qwen3Coder|MinimaxM2|MiMo|DotsTool/
/** Families in which SGLang removes quotes of a Python string; vLLM and the proxy return the text verbatim. */
const UNQUOTED = /Glm4/

const table: Record<string, Record<string, number>> = {}
for await (const json of createInterface({ input: process.stdin })) compare(JSON.parse(json) as Sample)
console.table(table)
const rows = Object.values(table)
const hasDifference = rows.some((row) => row['complete: differs'] || row['in chunks: differs'])
if (hasDifference || !rows.some((row) => row['complete: same'])) process.exitCode = 1

function compare(sample: Sample): void {
  const { parser, detector, kind, text } = sample
  const create = () => findParser(parser).create({ tools, makeToolCallId: () => 'id' })
  const output = parseComplete(create(), text)
  const chunkParser = create()
  const deltas = [...text].map((character) => chunkParser.push(character))
  if (!isDeepStrictEqual(mergeDeltas([...deltas, chunkParser.finish()]), output))
    count(sample, 'in chunks: differs')
  const calls = getToolCalls(output)
  const normalize = (value: unknown) => mapStrings(value, (text) => normalizeText(detector, text))
  const hasEqualCalls = isDeepStrictEqual(normalize(calls), normalize(sample.calls))
  // The proxy returns the text of an invalid tool call; SGLang drops some of it.
  const hasEqualContent = kind !== 'complete' || output.content.trim() === sample.content.trim()
  if (hasEqualCalls && hasEqualContent) count(sample, `${kind}: same`)
  else if (kind === 'complete') count(sample, 'complete: differs')
  else if (calls.length > sample.calls.length) count(sample, `${kind}: more calls here`)
  else if (calls.length < sample.calls.length) count(sample, `${kind}: fewer calls here`)
  else count(sample, `${kind}: other calls`)
}

function count({ detector, text, content, calls, parser }: Sample, outcome: string): void {
  const row = table[detector] ?? {}
  table[detector] = row
  row[outcome] = (row[outcome] ?? 0) + 1
  if (outcome.endsWith('same') || row[outcome] > Number(options.show)) return
  const output = parseComplete(findParser(parser).create({ tools, makeToolCallId: () => 'id' }), text)
  console.log(
    detector,
    outcome,
    JSON.stringify({
      text,
      theirs: { content, calls },
      ours: { content: output.content, calls: getToolCalls(output) },
    }),
  )
}

function getToolCalls({ toolCalls }: ParsedOutput) {
  return toolCalls.map(({ function: call }) => ({
    name: call.name,
    arguments: JSON.parse(call.arguments) as unknown,
  }))
}

/** Returns a string as the detector parses it. */
function normalizeText(detector: string, text: string): string | null {
  if (NULLS.test(detector) && text.trim().toLowerCase() === 'null') return null
  const unquoted = UNQUOTED.test(detector) ? text.replace(/^(\\?['"])(.*)\1$/s, '$2') : text
  return STRIPPED.test(detector) ? unquoted.trim() : unquoted
}

function mapStrings(value: unknown, change: (text: string) => string | null): unknown {
  if (typeof value === 'string') return change(value)
  if (Array.isArray(value)) return value.map((inner) => mapStrings(inner, change))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, mapStrings(inner, change)]))
}
