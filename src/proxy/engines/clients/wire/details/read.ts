/**
 * Parsers of token data in engines' JSON. Each returns undefined for data that is absent or malformed: partly known
 * data is treated as unknown. `docs/engine-wire.md` lists the location of each kind per engine, with the source.
 */
import { isRecord } from '../../../../../base/json.ts'
import {
  createIntegerTensor,
  getElementBytes,
  type Tensor,
  type TensorType,
  toNumbers,
} from '../../../../../protocol/token-data/tensors.ts'
import type {
  ExpertTable,
  PromptTable,
  TokenTable,
  VersionSpan,
} from '../../../../../protocol/token-data/token-data.ts'
import type { PromptIds } from '../../../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../../../protocol/token-ids/token-ids.ts'
import { readWeightVersion } from '../weight-version.ts'

/** A token and its logprob; NaN: not reported. */
export type Alternative = readonly [id: number, logprob: number]

/** Converts rows of alternatives to a table; an undefined row was not reported. */
export function createAlternativesTable(rows: readonly (readonly Alternative[] | undefined)[]): TokenTable {
  const table = { counts: [] as number[], ids: [] as number[], logprobs: [] as number[] }
  for (const row of rows) {
    table.counts.push(row?.length ?? 0)
    for (const [id, logprob] of row ?? []) {
      table.ids.push(id)
      table.logprobs.push(logprob)
    }
  }
  return table
}

/**
 * Reads sampling masks: a list of ids for each token, with logprobs if the engine reports them for all ids.
 * @param logprobs lists of the same lengths; others are ignored, because they do not belong to these ids
 */
export function readSamplingMask(rows: unknown, logprobs?: unknown): TokenTable | undefined {
  if (!Array.isArray(rows)) return undefined
  const ids: number[] = []
  const counts: number[] = []
  for (const row of rows) {
    if (!Array.isArray(row) || !row.every(isTokenId)) return undefined
    counts.push(row.length)
    for (const id of row) ids.push(id)
  }
  const values = Array.isArray(logprobs) ? flattenLogprobs(logprobs, counts) : undefined
  return { counts, ids, ...(values && { logprobs: values }) }
}

/** Returns the logprobs of all rows as one list; undefined unless the rows have the given lengths. */
function flattenLogprobs(rows: readonly unknown[], counts: readonly number[]): number[] | undefined {
  const isOfCounts = rows.every((row, index) => Array.isArray(row) && row.length === counts[index])
  return rows.length === counts.length && isOfCounts ? rows.flat().map(toNumber) : undefined
}

/** Reads one logprob for each token. */
export function readSamplingLogprobs(values: unknown): number[] | undefined {
  if (!Array.isArray(values) || values.length === 0 || values.some(Array.isArray)) return undefined
  return values.map(toNumber)
}

/** Reads a row of SGLang's entries, `[logprob, id, text]`. */
export function readAlternatives(row: unknown): Alternative[] | undefined {
  if (!Array.isArray(row)) return undefined
  const alternatives = row.map((entry): Alternative => [entry?.[1], toNumber(entry?.[0])])
  return alternatives.every(([id]) => isTokenId(id)) ? alternatives : undefined
}

const TOKEN_ID = /^token_id:(\d+)$/

/** Reads tokens in the form `token_id:123`, each with a logprob. */
export function parseTokenIdAlternatives(
  entries: readonly { token: string; logprob: unknown }[],
): Alternative[] | undefined {
  const alternatives: Alternative[] = []
  for (const { token, logprob } of entries) {
    const id = Number(TOKEN_ID.exec(token)?.[1] ?? Number.NaN)
    if (!isTokenId(id)) return undefined
    alternatives.push([id, toNumber(logprob)])
  }
  return alternatives
}

/**
 * Reads vLLM's objects of `{logprob}` by token id, one for each prompt position. Parsing loses the order of integer
 * keys, so the result has the prompt's own token first, then the others by logprob.
 */
export function readPromptObjects(rows: unknown, prompt: PromptIds | undefined): PromptTable | undefined {
  if (!Array.isArray(rows) || rows.length !== prompt?.length) return undefined
  const ids = prompt.toArray()
  const alternatives = rows.map((row, position) => {
    if (!isRecord(row)) return undefined
    const alternatives = Object.entries(row).map(([id, entry]): Alternative => {
      return [Number(id), isRecord(entry) ? toNumber(entry.logprob) : Number.NaN]
    })
    const isOwn = ([id]: Alternative) => id === ids[position]
    return alternatives.sort((a, b) => Number(isOwn(b)) - Number(isOwn(a)) || b[1] - a[1])
  })
  return { ...createAlternativesTable(alternatives), start: 0 }
}

/**
 * Reads SGLang's lists of prompt logprobs, with one entry for each prompt position.
 * @param tops alternatives for the same positions
 * @param count the maximum number of alternatives
 */
export function readPromptEntries(entries: unknown, tops: unknown, count: number): PromptTable | undefined {
  if (!Array.isArray(entries)) return undefined
  const rows = entries.map((entry, index) => {
    const own = readAlternatives([entry])
    // The first token of the prompt has no logprob, since no token precedes it.
    if (own === undefined || Number.isNaN(own[0]![1])) return undefined
    const others = readAlternatives(Array.isArray(tops) ? tops[index] : undefined) ?? []
    return [...own, ...others.slice(0, count).filter(([id]) => id !== own[0]![0])]
  })
  return { ...createAlternativesTable(rows), start: 0 }
}

/**
 * Reads vLLM's routed experts: a `.npy` file in base64, with a row for each token but the last.
 * @param start the requested first position; a server without this parameter reports all positions
 * @param tokens the number of tokens of prompt and completion together
 */
export function readNpyExperts(base64: unknown, start: number, tokens: number): ExpertTable | undefined {
  if (typeof base64 !== 'string') return undefined
  const experts = readNpy(Buffer.from(base64, 'base64'))
  if (experts === undefined || experts.shape.length < 2) return undefined
  const first = tokens - 1 - experts.shape[0]!
  return first === start || first === 0 ? { start: first, experts } : undefined
}

/**
 * Reads SGLang's routed experts: int32 in base64, with a row for each token but the last. The number of layers is not
 * reported, so a row is flat.
 * @param tokens the number of tokens of prompt and completion together
 */
export function readInt32Experts(base64: unknown, start: number, tokens: number): ExpertTable | undefined {
  if (typeof base64 !== 'string') return undefined
  const bytes = Buffer.from(base64, 'base64')
  const rows = tokens - 1 - start
  if (rows <= 0 || bytes.length === 0 || bytes.length % (rows * 4) !== 0) return undefined
  const { dtype, data } = narrow({ dtype: 'I32', shape: [bytes.length / 4], data: bytes })
  return { start, experts: { dtype, shape: [rows, bytes.length / 4 / rows], data } }
}

/**
 * Converts to a smaller type without loss: most models have at most 256 experts, which takes a quarter of the bytes.
 */
function narrow(numbers: Tensor): Tensor {
  const values = toNumbers(numbers)
  return values.every((value) => value >= 0) ? createIntegerTensor(values) : numbers
}

/** Reads `[{version, start, end}]`, in tokens of the completion. */
export function readVersionSpans(spans: unknown): VersionSpan[] | undefined {
  if (!Array.isArray(spans)) return undefined
  const read = spans.map((span) => {
    const fields = isRecord(span) ? span : {}
    return {
      version: readWeightVersion(fields.version) ?? '',
      start: Number(fields.start),
      end: Number(fields.end),
    }
  })
  return read.every(isSpan) ? read : undefined
}

function isSpan({ version, start, end }: VersionSpan): boolean {
  return version !== '' && isTokenId(start) && isTokenId(end) && start <= end
}

function toNumber(value: unknown): number {
  return typeof value === 'number' ? value : Number.NaN
}

/** The first bytes of NumPy's `.npy` format, in which vLLM sends routed experts. */
const MAGIC = Buffer.from('\x93NUMPY', 'latin1')

/** The supported types: integers of at most 32 bits, the only types of expert numbers. */
const TYPES: Readonly<Record<string, TensorType>> = {
  '|u1': 'U8',
  '|i1': 'I8',
  '<u2': 'U16',
  '<i2': 'I16',
  '<i4': 'I32',
}

/**
 * Parses versions 1 to 3 of NumPy's `.npy` format
 * (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
 * @returns undefined unless it is an array of one of {@link TYPES} in C order
 */
function readNpy(file: Buffer): Tensor | undefined {
  if (file.length < 12 || !file.subarray(0, MAGIC.length).equals(MAGIC)) return undefined
  const isFirst = file[6] === 1
  const headerStart = isFirst ? 10 : 12
  const dataStart = headerStart + (isFirst ? file.readUInt16LE(8) : file.readUInt32LE(8))
  const header = file.toString('latin1', headerStart, dataStart)
  const dtype = TYPES[/'descr': *'([^']*)'/.exec(header)?.[1] ?? '']
  const dimensions = /'shape': *\(([\d, ]*)\)/.exec(header)?.[1]
  if (dtype === undefined || dimensions === undefined || !/'fortran_order': *False/.test(header))
    return undefined
  const shape = dimensions.split(',').flatMap((text) => (text.trim() === '' ? [] : [Number(text)]))
  const data = file.subarray(dataStart)
  const bytes = shape.reduce((product, length) => product * length, getElementBytes(dtype))
  return data.length === bytes ? { dtype, shape, data } : undefined
}
