/**
 * Compares the proxy's parsers with vLLM's parsers on random completions (complete, cut, hostile) of every family that
 * vLLM supports; the proxy parses each at once and one character at a time. Tool calls, content and reasoning of complete
 * completions must be equal, and the tool calls before a cut; hostile ones are counted by outcome, with a limit per
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
import { mergeDeltas, type ParsedOutput, parseComplete } from '../../helpers/parsed-output.ts'

export const VLLM = 'vllm==0.33.0'
/** All clones on a machine and `test:drift` share this folder. */
const WHEELS = join(CACHE, 'wheels')
const LIMITS = join(import.meta.dirname, 'vllm.json')

/** A completion, and vLLM's parse result. */
interface Sample {
  /** The proxy's parser. */
  parser: string
  /** The proxy's parser, and a variant of vLLM's parser or of the format. */
  reader: string
  kind: 'complete' | 'cut' | 'hostile'
  /** The markers in the vocabulary. */
  markers: string[]
  /** Whether vLLM assumes that the prompt has opened reasoning. */
  opened: boolean
  text: string
  error?: string
  reasoning: string
  content: string
  calls: ParsedToolCall[]
}

interface ParsedToolCall {
  name: string
  arguments: unknown
}

/**
 * - `text here`: equal tool calls; vLLM drops text that is not a tool call or that follows a cut, the proxy returns it.
 * - `call there`: vLLM returns the parsed part of cut or broken tool calls.
 * - `none there`: vLLM returns the complete completion as text because of one invalid tool call.
 * - `call here`: the proxy returns a tool call that is complete except for the marker after it, where the text ends.
 */
type Outcome =
  | ('same' | 'text here' | 'call there' | 'none there' | 'call here')
  | ('other text' | 'other calls' | 'other reasoning' | 'chunks differ' | 'vLLM fails')

const ALLOWED: Record<string, readonly Outcome[]> = {
  complete: ['same'],
  cut: ['same', 'text here', 'call there', 'none there', 'call here'],
}

/** Known faults of vLLM's parsers, each of which docs/token-mode.md lists. */
const KNOWN_FAULTS: Record<string, Partial<Record<Sample['kind'], readonly Outcome[]>>> = {
  minicpm5: { complete: ['text here'] },
  phi4_mini_json: { complete: ['text here', 'none there'] },
  hunyuan_a13b: { cut: ['other reasoning', 'other text'] },
  gemma4: { cut: ['other reasoning'] },
  mistral: { cut: ['other text'] },
  muse_glimmer: { cut: ['other text'] },
  apertus: { cut: ['other text'] },
  olmo3: { complete: ['text here'], cut: ['other reasoning', 'other text'] },
  internlm: { cut: ['vLLM fails'], hostile: ['vLLM fails'] },
}

/** Normalizes values that vLLM's parsers report differently. */
const NORMALIZERS: Record<string, (value: unknown) => unknown> = {
  cohere_command: (value) => (isDeepStrictEqual(value, { malformed: '' }) ? {} : value),
  gemma4: toScalarText,
  hy_v3: toScalarText,
  hy_v4: toScalarText,
  minimax_m3: (value) =>
    isObject(value) && Object.keys(value).join() === 'item' ? [value.item].flat() : value,
  dots: (value) => (isObject(value) ? value : String(value).trim()),
  step3: parseText,
  muse_glimmer: (value) => (typeof value === 'string' ? parseJsonOrText(value) : value),
}

type Counts = Partial<Record<Outcome, number>>

/** @returns the number of outcomes beyond the limits */
export async function compareWithVllm({
  python,
  completions,
  seed,
  write,
}: {
  python: string
  /** Number of completions per reader. */
  completions: number
  seed: string
  write: boolean
}): Promise<number> {
  const program = join(import.meta.dirname, 'vllm.py')
  const child = spawn(python, [program, downloadWheel(python), String(completions), seed], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const table: Record<string, Counts> = {}
  let tools: Tool[] = []
  for await (const json of createInterface({ input: child.stdout })) {
    const sample = JSON.parse(json) as Sample & { tools?: Tool[] }
    if (sample.tools === undefined) count(table, sample, tools)
    else tools = sample.tools
  }
  if (child.exitCode === null) await once(child, 'exit')
  if (child.exitCode !== 0) throw new Error(`vLLM's parsers ended with ${child.exitCode}`)
  if (write) writeFileSync(LIMITS, `${formatLimits(table)}\n`)
  const limits = JSON.parse(readFileSync(LIMITS, 'utf8')) as Record<string, Counts>
  const excesses = Object.entries(table).flatMap(([row, counts]) =>
    findExcesses(row, counts, limits[row.split(', ')[0]!] ?? {}),
  )
  for (const excess of excesses) console.log(excess)
  const total = Object.values(table).flatMap((counts) => Object.values(counts))
  const sum = total.reduce((all, one) => all + one, 0)
  console.log(
    `${sum} completions parsed as by ${VLLM}, ${Object.keys(table).length / 3} readers: ${excesses.length} differ`,
  )
  return excesses.length
}

function downloadWheel(python: string): string {
  mkdirSync(WHEELS, { recursive: true })
  const name = () => globSync(`${VLLM.replace('==', '-')}-*manylinux*x86_64.whl`, { cwd: WHEELS })[0]
  if (name() === undefined) {
    const platform = ['--platform', 'manylinux_2_28_x86_64', '--python-version', '3.11']
    const download = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:', ...platform]
    execFileSync(python, [...download, '--dest', WHEELS, VLLM], { stdio: ['ignore', 'ignore', 'inherit'] })
  }
  return join(WHEELS, name()!)
}

function count(table: Record<string, Counts>, sample: Sample, tools: Tool[]): void {
  const { reader, kind, parser, markers, opened, text } = sample
  const row = `${reader}, ${kind}`
  const create = () =>
    adaptMarkers(findParser(parser), markers).create({
      tools,
      startsInReasoning: opened,
      makeToolCallId: () => 'id',
    })
  const output = parseComplete(create(), text)
  const chunkParser = create()
  const deltas = [...text].map((character) => chunkParser.push(character))
  const isSame = isDeepStrictEqual(mergeDeltas([...deltas, chunkParser.finish()]), output)
  const outcome = isSame ? findOutcome(sample, output) : 'chunks differ'
  table[row] ??= {}
  table[row][outcome] = (table[row][outcome] ?? 0) + 1
  const isShown = (process.env.VERBOSE ?? '').split(';').includes(`${row}: ${outcome}`)
  if (isShown || (!isAllowed(sample, outcome) && table[row][outcome] <= 3))
    console.log(row, outcome, JSON.stringify(sample), JSON.stringify(output))
}

function findOutcome(sample: Sample, { reasoning, content, toolCalls }: ParsedOutput): Outcome {
  if (sample.error !== undefined) return 'vLLM fails'
  // The proxy keeps white space at the ends as text; vLLM drops it, or adds it to a tool call.
  if (sample.reasoning.trim() !== reasoning.trim()) return 'other reasoning'
  const normalize = NORMALIZERS[sample.parser] ?? ((value: unknown) => value)
  const theirs = sample.calls.map((call) => mapValues(call, normalize))
  const ours = toolCalls.map(({ function: { name, arguments: json } }) =>
    mapValues({ name, arguments: parseArguments(json) }, normalize),
  )
  const [theirText, ourText] = [sample.content.trim(), content.trim()]
  const both = Math.min(theirs.length, ours.length)
  if (!isDeepStrictEqual(theirs.slice(0, both), ours.slice(0, both))) return 'other calls'
  if (theirs.length === ours.length && theirText === ourText) return 'same'
  if (ours.length === theirs.length + 1 && theirText === ourText && both > 0) return 'call here'
  if (ours.length > 0 && theirs.length === 0) return 'none there'
  if (!ourText.startsWith(theirText)) return 'other text'
  if (theirs.length === ours.length) return 'text here'
  return theirs.length > ours.length ? 'call there' : 'other calls'
}

function isAllowed({ parser, kind }: Pick<Sample, 'parser' | 'kind'>, outcome: Outcome): boolean {
  const allowed = [...(ALLOWED[kind] ?? []), ...(KNOWN_FAULTS[parser]?.[kind] ?? [])]
  if (allowed.includes(outcome)) return true
  return kind === 'hostile' && outcome !== 'chunks differ' && outcome !== 'vLLM fails'
}

/** Returns the outcomes beyond their limits, which a count may exceed by chance by up to five standard deviations. */
function findExcesses(row: string, counts: Counts, limits: Counts): string[] {
  const [reader = '', kind] = row.split(', ') as [string, Sample['kind']]
  const sample = { parser: reader.split(' ')[0]!, kind }
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0)
  return Object.entries(counts).flatMap(([name, number]) => {
    const outcome = name as Outcome
    if (!isAllowed(sample, outcome)) return [`${row}: ${number} of ${all}: ${outcome}`]
    if (kind !== 'hostile') return []
    const share = (limits[outcome] ?? 0) / 1000
    const most = share + 5 * Math.sqrt((share * (1 - share)) / all) + 3 / all
    return outcome !== 'same' && number / all > most
      ? [`${row}: ${number} of ${all}: ${outcome}, more than ${Math.floor(most * all)}`]
      : []
  })
}

function formatLimits(table: Record<string, Counts>): string {
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

function mapValues(value: unknown, change: (value: unknown) => unknown): unknown {
  if (Array.isArray(value)) return change(value.map((inner) => mapValues(inner, change)))
  if (!isObject(value)) return change(value)
  return change(
    Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, mapValues(inner, change)])),
  )
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

/** Returns a scalar as text. */
function toScalarText(value: unknown): unknown {
  return isObject(value) ? value : String(value)
}

/** Returns the value of a JSON text, or the text without white space at its ends. */
function parseText(value: unknown): unknown {
  if (typeof value !== 'string') return value
  const parsed = parseJsonOrText(value.trim())
  return typeof parsed === 'object' ? mapValues(parsed, parseText) : parsed
}

/** Parses a JSON text. @returns the text if it is not JSON */
function parseJsonOrText(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Parses arguments as `vllm.py` prints them. */
function parseArguments(json: string): unknown {
  try {
    return JSON.parse(json)
  } catch {
    return { malformed: json }
  }
}
