/**
 * Compares what vLLM's own parsers read in random responses of every family that they support (complete, cut, hostile)
 * with what the proxy's parsers read, at once and one character at a time. Tool calls, content and reasoning of
 * complete responses must be equal, and the calls before a cut; hostile ones are counted by outcome, with a limit per
 * thousand in `vllm.json`.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { isDeepStrictEqual } from 'node:util'
import type { Tool } from '../../../src/protocol/canonical/messages.ts'
import { adaptMarkers, findParser } from '../../../src/proxy/tokens/parsers/choose-parser.ts'
import { CACHE } from '../../helpers/install-once.ts'
import { mergeDeltas, type ParsedOutput, parseWhole } from '../../helpers/parsed-output.ts'

export const VLLM = 'vllm==0.33.0'
/** Shared with `test:drift`, for all clones on a machine. */
const WHEELS = join(CACHE, 'wheels')
const PINNED = join(import.meta.dirname, 'vllm.json')

interface Line {
  parser: string
  /** The proxy's parser, and which of vLLM's and of its templates. */
  reader: string
  kind: 'whole' | 'cut' | 'hostile'
  /** The markers in vLLM's vocabulary. */
  markers: string[]
  /** vLLM assumes that the prompt has opened reasoning. */
  opened: boolean
  text: string
  error?: string
  reasoning: string
  content: string
  calls: Call[]
}

interface Call {
  name: string
  arguments: unknown
}

/**
 * - `text here`: the same calls; text that is not a call, or that follows a cut, is shown here and dropped by vLLM.
 * - `call there`: vLLM reports cut or broken calls as far as it read them.
 * - `none there`: for vLLM, one unreadable call turns the whole response into text.
 * - `call here`: complete except for the marker behind it, where the text ends.
 */
type Outcome =
  | ('same' | 'text here' | 'call there' | 'none there' | 'call here')
  | ('other text' | 'other calls' | 'other reasoning' | 'pieces differ' | 'vLLM fails')

const ALLOWED: Record<string, readonly Outcome[]> = {
  whole: ['same'],
  cut: ['same', 'text here', 'call there', 'none there', 'call here'],
}

/** What vLLM's parsers lose, or read as something no template writes: docs/token-mode.md names each. */
const NAMED: Record<string, Partial<Record<Line['kind'], readonly Outcome[]>>> = {
  minicpm5: { whole: ['text here'] },
  phi4_mini_json: { whole: ['text here', 'none there'] },
  hunyuan_a13b: { cut: ['other reasoning', 'other text'] },
  gemma4: { cut: ['other reasoning'] },
  mistral: { cut: ['other text'] },
  muse_glimmer: { cut: ['other text'] },
  apertus: { cut: ['other text'] },
  olmo3: { whole: ['text here'], cut: ['other reasoning', 'other text'] },
  internlm: { cut: ['vLLM fails'], hostile: ['vLLM fails'] },
}

/** Values that vLLM's parsers report differently, normalized for the comparison. */
const AS_THEIRS: Record<string, (value: unknown) => unknown> = {
  cohere_command: (value) => (isDeepStrictEqual(value, { malformed: '' }) ? {} : value),
  gemma4: scalarText,
  hy_v3: scalarText,
  hy_v4: scalarText,
  minimax_m3: (value) =>
    isObject(value) && Object.keys(value).join() === 'item' ? [value.item].flat() : value,
  dots: (value) => (isObject(value) ? value : String(value).trim()),
  step3: parsedText,
  muse_glimmer: (value) => (typeof value === 'string' ? jsonOr(value) : value),
}

type Counts = Partial<Record<Outcome, number>>

/** @returns the number of outcomes beyond the limits */
export async function compareWithVllm({
  python,
  answers,
  seed,
  write,
}: {
  python: string
  answers: number
  seed: string
  write: boolean
}): Promise<number> {
  const program = join(import.meta.dirname, 'vllm.py')
  const child = spawn(python, [program, wheel(python), String(answers), seed], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const table: Record<string, Counts> = {}
  let tools: Tool[] = []
  for await (const json of createInterface({ input: child.stdout })) {
    const line = JSON.parse(json) as Line & { tools?: Tool[] }
    if (line.tools === undefined) count(table, line, tools)
    else tools = line.tools
  }
  if (child.exitCode === null) await once(child, 'exit')
  if (child.exitCode !== 0) throw new Error(`vLLM's parsers ended with ${child.exitCode}`)
  if (write) writeFileSync(PINNED, `${pinnedText(table)}\n`)
  const pinned = JSON.parse(readFileSync(PINNED, 'utf8')) as Record<string, Counts>
  const wrong = Object.entries(table).flatMap(([row, counts]) =>
    tooMany(row, counts, pinned[row.split(', ')[0]!] ?? {}),
  )
  for (const what of wrong) console.log(what)
  const total = Object.values(table).flatMap((counts) => Object.values(counts))
  const sum = total.reduce((all, one) => all + one, 0)
  console.log(
    `${sum} answers read as by ${VLLM}, ${Object.keys(table).length / 3} readers: ${wrong.length} differ`,
  )
  return wrong.length
}

function wheel(python: string): string {
  mkdirSync(WHEELS, { recursive: true })
  const name = () => globSync(`${VLLM.replace('==', '-')}-*manylinux*x86_64.whl`, { cwd: WHEELS })[0]
  if (name() === undefined) {
    const platform = ['--platform', 'manylinux_2_28_x86_64', '--python-version', '3.11']
    const download = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', ...platform]
    execFileSync(python, [...download, '--dest', WHEELS, VLLM], { stdio: ['ignore', 'ignore', 'inherit'] })
  }
  return join(WHEELS, name()!)
}

function count(table: Record<string, Counts>, line: Line, tools: Tool[]): void {
  const { reader, kind, parser, markers, opened, text } = line
  const row = `${reader}, ${kind}`
  const create = () =>
    adaptMarkers(findParser(parser), markers).create({
      tools,
      startsInReasoning: opened,
      makeToolCallId: () => 'id',
    })
  const found = parseWhole(create(), text)
  const pieces = create()
  const deltas = [...text].map((character) => pieces.push(character))
  const isSame = isDeepStrictEqual(mergeDeltas([...deltas, pieces.finish()]), found)
  const outcome = isSame ? outcomeOf(line, found) : 'pieces differ'
  table[row] ??= {}
  table[row][outcome] = (table[row][outcome] ?? 0) + 1
  const isShown = (process.env.VERBOSE ?? '').split(';').includes(`${row}: ${outcome}`)
  if (isShown || (!isAllowed(line, outcome) && table[row][outcome] <= 3))
    console.log(row, outcome, JSON.stringify(line), JSON.stringify(found))
}

function outcomeOf(line: Line, { reasoning, content, toolCalls }: ParsedOutput): Outcome {
  if (line.error !== undefined) return 'vLLM fails'
  // White space at the ends belongs to the model's text here; vLLM drops it, or adds it to a call.
  if (line.reasoning.trim() !== reasoning.trim()) return 'other reasoning'
  const change = AS_THEIRS[line.parser] ?? ((value: unknown) => value)
  const theirs = line.calls.map((call) => eachValue(call, change))
  const ours = toolCalls.map(({ function: { name, arguments: written } }) =>
    eachValue({ name, arguments: argumentsOf(written) }, change),
  )
  const [theirText, ourText] = [line.content.trim(), content.trim()]
  const both = Math.min(theirs.length, ours.length)
  if (!isDeepStrictEqual(theirs.slice(0, both), ours.slice(0, both))) return 'other calls'
  if (theirs.length === ours.length && theirText === ourText) return 'same'
  if (ours.length === theirs.length + 1 && theirText === ourText && both > 0) return 'call here'
  if (ours.length > 0 && theirs.length === 0) return 'none there'
  if (!ourText.startsWith(theirText)) return 'other text'
  if (theirs.length === ours.length) return 'text here'
  return theirs.length > ours.length ? 'call there' : 'other calls'
}

function isAllowed({ parser, kind }: Pick<Line, 'parser' | 'kind'>, outcome: Outcome): boolean {
  const allowed = [...(ALLOWED[kind] ?? []), ...(NAMED[parser]?.[kind] ?? [])]
  if (allowed.includes(outcome)) return true
  return kind === 'hostile' && outcome !== 'pieces differ' && outcome !== 'vLLM fails'
}

/** A sample may exceed its share by chance, by up to five standard deviations. */
function tooMany(row: string, counts: Counts, pinned: Counts): string[] {
  const [reader = '', kind] = row.split(', ') as [string, Line['kind']]
  const line = { parser: reader.split(' ')[0]!, kind }
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0)
  return Object.entries(counts).flatMap(([name, number]) => {
    const outcome = name as Outcome
    if (!isAllowed(line, outcome)) return [`${row}: ${number} of ${all}: ${outcome}`]
    if (kind !== 'hostile') return []
    const share = (pinned[outcome] ?? 0) / 1000
    const most = share + 5 * Math.sqrt((share * (1 - share)) / all) + 3 / all
    return outcome !== 'same' && number / all > most
      ? [`${row}: ${number} of ${all}: ${outcome}, more than ${Math.floor(most * all)}`]
      : []
  })
}

function pinnedText(table: Record<string, Counts>): string {
  const hostile = Object.entries(table).filter(([row]) => row.endsWith(', hostile'))
  const rows = hostile.map(([row, counts]) => {
    const all = Object.values(counts).reduce((sum, one) => sum + one, 0)
    const shares = Object.entries(counts).map(([outcome, number]) => [
      outcome,
      Math.ceil((number / all) * 1000),
    ])
    return [row.split(', ')[0], Object.fromEntries(shares.toSorted())]
  })
  return JSON.stringify(Object.fromEntries(rows), null, 2)
}

function eachValue(value: unknown, change: (value: unknown) => unknown): unknown {
  if (Array.isArray(value)) return change(value.map((inner) => eachValue(inner, change)))
  if (!isObject(value)) return change(value)
  return change(
    Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, eachValue(inner, change)])),
  )
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

function scalarText(value: unknown): unknown {
  return isObject(value) ? value : String(value)
}

/** Returns a text without white space at its ends, or its value if it is JSON. */
function parsedText(value: unknown): unknown {
  if (typeof value !== 'string') return value
  const parsed = jsonOr(value.trim())
  return typeof parsed === 'object' ? eachValue(parsed, parsedText) : parsed
}

function jsonOr(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Parses arguments as `vllm.py` prints them. */
function argumentsOf(written: string): unknown {
  try {
    return JSON.parse(written)
  } catch {
    return { malformed: written }
  }
}
