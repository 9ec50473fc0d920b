/** The kinds of details as values, and each kind's one way to be packed. */
import { parseJson } from '../../base/json.ts'
import type { TokenDataKind, TrainerDataKind } from './kinds.ts'
import {
  createIntegerTensor,
  createNumberTensor,
  getElementSize,
  packTensors,
  type Tensor,
  toNumbers,
  unpackTensors,
} from './tensors.ts'

/**
 * Token ids in rows, with or without a logprob each. A row without ids is one that was not reported: there is no support and
 * no list of alternatives without a token in it.
 */
export interface TokenTable {
  /** How many ids each row has. */
  readonly counts: readonly number[]
  /** Of all rows, one after the other. */
  readonly ids: readonly number[]
  /** As many as `ids`; NaN: not reported. */
  readonly logprobs?: readonly number[]
}

/** A table with a row for each place of the prompt from `start` on. */
export interface PromptTable extends TokenTable {
  readonly start: number
}

/** What a mixture of experts chose, a row for each place of prompt and completion from `start` on. */
export interface ExpertTable {
  readonly start: number
  /** `[rows, layers, experts per token]`; `[rows, n]` where the engine does not tell its layers. */
  readonly experts: Tensor
}

/** From which sampled token up to which one the weights had this version, in the engine's own word. */
export interface VersionSpan {
  readonly version: string
  readonly start: number
  readonly end: number
}

/** What a teacher thinks of the sampled tokens. */
export interface TeacherLogprobs {
  /** Its name. */
  readonly teacher: string
  /** Natural logarithms, before temperature; NaN: not told. */
  readonly logprobs: readonly number[]
}

export interface TokenData
  extends Partial<Record<Exclude<TrainerDataKind, 'teacher_logprobs'>, readonly number[]>> {
  /** What the sampler left to choose from, for each sampled token; with logprobs where the engine gives them. */
  sampling_mask?: TokenTable
  /** Of each sampled token the logprob after filters, normalised over the mask; NaN: not reported. */
  sampling_logprobs?: readonly number[]
  /** The likeliest tokens at the place of each sampled one. */
  top_logprobs?: TokenTable
  /** Of each place of the prompt the prompt's own token first, then the likeliest ones. */
  prompt_logprobs?: PromptTable
  routed_experts?: ExpertTable
  weight_versions?: readonly VersionSpan[]
  teacher_logprobs?: TeacherLogprobs
}

/** A detail as it is kept and sent. */
export interface TokenDataBlob {
  readonly kind: TokenDataKind
  readonly body: Uint8Array
}

type Codecs = {
  readonly [Kind in TokenDataKind]: {
    pack(detail: NonNullable<TokenData[Kind]>): Buffer
    /** @throws RangeError for bytes that are no such detail */
    unpack(body: Uint8Array): NonNullable<TokenData[Kind]>
  }
}

const TABLE: Codecs['sampling_mask' | 'top_logprobs'] = {
  pack: (table) => packTensors({ tensors: packTable(table), metadata: {} }),
  unpack: (body) => unpackTable(unpackTensors(body).tensors),
}

/** @param name of the one array */
const numbersAs = (name: string): Codecs['sampling_logprobs'] => ({
  pack: (numbers) => packTensors({ tensors: { [name]: createNumberTensor(numbers) }, metadata: {} }),
  unpack: (body) => toNumbers(unpackTensors(body).tensors[name]),
})

const CODECS: Codecs = {
  sampling_mask: TABLE,
  sampling_logprobs: numbersAs('logprobs'),
  top_logprobs: TABLE,
  prompt_logprobs: {
    pack: (table) => packTensors({ tensors: packTable(table), metadata: { start: String(table.start) } }),
    unpack: (body) => {
      const { tensors, metadata } = unpackTensors(body)
      return { ...unpackTable(tensors), start: parseStart(metadata.start) }
    },
  },
  routed_experts: {
    pack: ({ start, experts }) => packTensors({ tensors: { experts }, metadata: { start: String(start) } }),
    unpack: (body) => {
      const { tensors, metadata } = unpackTensors(body)
      return { start: parseStart(metadata.start), experts: unpackExperts(tensors.experts) }
    },
  },
  weight_versions: {
    pack: (spans) =>
      packTensors({
        tensors: {
          starts: createIntegerTensor(spans.map(({ start }) => start)),
          ends: createIntegerTensor(spans.map(({ end }) => end)),
        },
        metadata: { versions: JSON.stringify(spans.map(({ version }) => version)) },
      }),
    unpack: (body) => {
      const { tensors, metadata } = unpackTensors(body)
      const ends = toNumbers(tensors.ends)
      const versions = parseTexts(metadata.versions, ends.length)
      return toNumbers(tensors.starts).map((start, at) => ({ version: versions[at]!, start, end: ends[at]! }))
    },
  },
  teacher_logprobs: {
    pack: ({ teacher, logprobs }) =>
      packTensors({ tensors: { logprobs: createNumberTensor(logprobs) }, metadata: { teacher } }),
    unpack: (body) => {
      const { tensors, metadata } = unpackTensors(body)
      return { teacher: metadata.teacher ?? '', logprobs: toNumbers(tensors.logprobs) }
    },
  },
  advantages: numbersAs('values'),
  ratios: numbersAs('values'),
  entropies: numbersAs('values'),
  loss_weights: numbersAs('values'),
}

export function packTokenData(details: TokenData): TokenDataBlob[] {
  return (Object.keys(details) as TokenDataKind[]).flatMap((kind) => {
    const detail = details[kind]
    return detail === undefined ? [] : [{ kind, body: CODECS[kind].pack(detail as never) }]
  })
}

/** @throws RangeError for what no codec has packed */
export function unpackTokenData(packed: Iterable<TokenDataBlob>): TokenData {
  const details: Record<string, unknown> = {}
  for (const { kind, body } of packed) details[kind] = CODECS[kind].unpack(body)
  return details as TokenData
}

export function isTokenDataKind(kind: string): kind is TokenDataKind {
  return Object.hasOwn(CODECS, kind)
}

function packTable({ counts, ids, logprobs }: TokenTable): Record<string, Tensor> {
  return {
    counts: createIntegerTensor(counts),
    ids: createIntegerTensor(ids),
    ...(logprobs && { logprobs: createNumberTensor(logprobs) }),
  }
}

function unpackTable(tensors: Readonly<Record<string, Tensor>>): TokenTable {
  const counts = toNumbers(tensors.counts)
  const ids = toNumbers(tensors.ids)
  const logprobs = tensors.logprobs && toNumbers(tensors.logprobs)
  const total = counts.reduce((sum, count) => sum + count, 0)
  if (ids.length !== total || (logprobs && logprobs.length !== total))
    throw new RangeError('a packed detail has another number of ids than it says')
  return { counts, ids, ...(logprobs && { logprobs }) }
}

function unpackExperts(experts: Tensor | undefined): Tensor {
  if (experts === undefined || experts.shape.length < 2 || experts.dtype.startsWith('F'))
    throw new RangeError('packed experts are not rows of whole numbers')
  return experts
}

function parseStart(text: string | undefined): number {
  const place = Number(text)
  if (text === undefined || !Number.isSafeInteger(place) || place < 0)
    throw new RangeError('a packed detail does not say where it starts')
  return place
}

function parseTexts(json: string | undefined, count: number): string[] {
  const texts = parseJson(json ?? '')
  if (!Array.isArray(texts) || texts.length !== count || !texts.every((text) => typeof text === 'string'))
    throw new RangeError('packed versions lack their names')
  return texts
}

/** Bytes of one row of a tensor. */
export function getRowSize({ dtype, shape }: Tensor): number {
  return shape.slice(1).reduce((product, length) => product * length, getElementSize(dtype))
}
