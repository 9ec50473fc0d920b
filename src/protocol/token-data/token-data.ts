/** The kinds of token data as values, and the packed form of each kind. */
import { parseJson } from '../../base/json.ts'
import type { TokenDataKind, TrainerDataKind } from './kinds.ts'
import {
  createIntegerTensor,
  createNumberTensor,
  getElementBytes,
  packTensors,
  type Tensor,
  toNumbers,
  unpackTensors,
} from './tensors.ts'

/**
 * Token ids in rows, with or without a logprob each. A row without ids was not reported: every sampling mask and every
 * list of alternatives has at least one token.
 */
export interface TokenTable {
  /** The number of ids of each row. */
  readonly counts: readonly number[]
  /** The ids of all rows, concatenated. */
  readonly ids: readonly number[]
  /** One per id; NaN: not reported. */
  readonly logprobs?: readonly number[]
}

/** A table with a row for each position of the prompt from `start` on. */
export interface PromptTable extends TokenTable {
  readonly start: number
}

/**
 * The experts that a mixture-of-experts model chose, a row for each position of prompt and completion from `start` on.
 */
export interface ExpertTable {
  readonly start: number
  /** `[rows, layers, experts per token]`; `[rows, n]` if the engine does not report its layers. */
  readonly experts: Tensor
}

/** A range of sampled tokens and the engine's own identifier of the weights that sampled them. */
export interface VersionSpan {
  readonly version: string
  readonly start: number
  readonly end: number
}

/** A teacher's logprobs of the sampled tokens. */
export interface TeacherLogprobs {
  /** The name of the teacher. */
  readonly teacher: string
  /** Natural logarithms, before temperature; NaN: not reported. */
  readonly logprobs: readonly number[]
}

export interface TokenData
  extends Partial<Record<Exclude<TrainerDataKind, 'teacher_logprobs'>, readonly number[]>> {
  /**
   * For each sampled token, the tokens that the filters left to the sampler; with logprobs if the engine reports them.
   */
  sampling_mask?: TokenTable
  /** The logprob of each sampled token after filters, normalised over the mask; NaN: not reported. */
  sampling_logprobs?: readonly number[]
  /** For each sampled token, the likeliest tokens at its position. */
  top_logprobs?: TokenTable
  /** For each position of the prompt, the prompt's own token first, then the likeliest ones. */
  prompt_logprobs?: PromptTable
  routed_experts?: ExpertTable
  weight_versions?: readonly VersionSpan[]
  teacher_logprobs?: TeacherLogprobs
}

/** Token data of one kind as it is stored and sent. */
export interface TokenDataBlob {
  readonly kind: TokenDataKind
  readonly body: Uint8Array
}

type Codecs = {
  readonly [Kind in TokenDataKind]: {
    pack(detail: NonNullable<TokenData[Kind]>): Buffer
    /** Parses packed token data. @throws RangeError for any other bytes */
    unpack(body: Uint8Array): NonNullable<TokenData[Kind]>
  }
}

const TABLE: Codecs['sampling_mask' | 'top_logprobs'] = {
  pack: (table) => packTensors({ tensors: packTable(table), metadata: {} }),
  unpack: (body) => unpackTable(unpackTensors(body).tensors),
}

/** Creates the codec of a single array. @param name the name of the array */
const createNumbersCodec = (name: string): Codecs['sampling_logprobs'] => ({
  pack: (numbers) => packTensors({ tensors: { [name]: createNumberTensor(numbers) }, metadata: {} }),
  unpack: (body) => toNumbers(unpackTensors(body).tensors[name]),
})

const CODECS: Codecs = {
  sampling_mask: TABLE,
  sampling_logprobs: createNumbersCodec('logprobs'),
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
      return toNumbers(tensors.starts).map((start, index) => ({
        version: versions[index]!,
        start,
        end: ends[index]!,
      }))
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
  advantages: createNumbersCodec('values'),
  ratios: createNumbersCodec('values'),
  entropies: createNumbersCodec('values'),
  loss_weights: createNumbersCodec('values'),
}

export function packTokenData(details: TokenData): TokenDataBlob[] {
  return (Object.keys(details) as TokenDataKind[]).flatMap((kind) => {
    const detail = details[kind]
    return detail === undefined ? [] : [{ kind, body: CODECS[kind].pack(detail as never) }]
  })
}

/** Unpacks token data. @throws RangeError for bytes that no codec packed */
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
    throw new RangeError('packed token data has a number of ids that differs from its counts')
  return { counts, ids, ...(logprobs && { logprobs }) }
}

function unpackExperts(experts: Tensor | undefined): Tensor {
  if (experts === undefined || experts.shape.length < 2 || experts.dtype.startsWith('F'))
    throw new RangeError('packed experts are not rows of integers')
  return experts
}

function parseStart(text: string | undefined): number {
  const index = Number(text)
  if (text === undefined || !Number.isSafeInteger(index) || index < 0)
    throw new RangeError('packed token data lacks its start')
  return index
}

function parseTexts(json: string | undefined, count: number): string[] {
  const texts = parseJson(json ?? '')
  if (!Array.isArray(texts) || texts.length !== count || !texts.every((text) => typeof text === 'string'))
    throw new RangeError('packed versions lack their names')
  return texts
}

/** Returns the number of bytes of one row of a tensor. */
export function getRowSize({ dtype, shape }: Tensor): number {
  return shape.slice(1).reduce((product, length) => product * length, getElementBytes(dtype))
}
