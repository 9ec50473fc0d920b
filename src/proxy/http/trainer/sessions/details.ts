/** Writes the details of rows and traces as JSON, in chunks, because those of a long row have many megabytes. */
import { ProxyError } from '../../../../base/errors.ts'
import { yieldToEventLoop } from '../../../../base/yield-to-event-loop.ts'
import {
  TOKEN_DATA_KINDS,
  type TokenDataKind,
  type TrainerDataKind,
} from '../../../../protocol/token-data/kinds.ts'
import type { Tensor } from '../../../../protocol/token-data/tensors.ts'
import { type TokenData, unpackTokenData } from '../../../../protocol/token-data/token-data.ts'
import {
  collectRowDetails,
  type RowDetails,
  type RowExperts,
  type RowLayout,
  type TokenRow,
} from '../../../session/trajectories/row-details.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { writeMember } from './json-stream.ts'

/** The details that a client may request: kinds of token data, and the sampling parameters of turns. */
const DETAIL_NAMES = [...TOKEN_DATA_KINDS, 'sampling'] as const

type DetailName = (typeof DETAIL_NAMES)[number]

/** The details that a request selects. */
export class DetailSelection {
  readonly kinds: readonly TokenDataKind[]
  readonly sampling: boolean

  private constructor(names: ReadonlySet<DetailName>) {
    this.kinds = TOKEN_DATA_KINDS.filter((kind) => names.has(kind))
    this.sampling = names.has('sampling')
  }

  /**
   * Parses the parameter `details`.
   * @param text names separated by commas, or `all`; undefined: none
   * @throws ProxyError `invalid_request`
   */
  static parse(text: string | undefined): DetailSelection {
    if (text === 'all') return new DetailSelection(new Set(DETAIL_NAMES))
    const names = (text ?? '').split(',').filter((name) => name !== '')
    const unknown = names.find((name) => !isDetailName(name))
    if (unknown === undefined) return new DetailSelection(new Set(names.filter(isDetailName)))
    const message = `'${unknown}' is not a detail; the details are ${DETAIL_NAMES.join(', ')}, or all`
    throw new ProxyError('invalid_request', message, { param: 'details' })
  }
}

function isDetailName(name: string): name is DetailName {
  return (DETAIL_NAMES as readonly string[]).includes(name)
}

/**
 * The kinds with data of any position of a turn's prompt, which a row has also from turns that it does not train. Data
 * of the other kinds belongs to sampled tokens.
 */
export const PROMPT_KINDS: readonly TokenDataKind[] = ['prompt_logprobs', 'routed_experts']

/** Reads the stored details of turns, without those that a row of them does not have. @returns them by turn id */
export async function readStoredDetails(
  reader: Pick<TurnReader, 'readDetails'>,
  sessionId: string,
  turns: RowLayout['turns'],
  kinds: readonly TokenDataKind[],
): Promise<ReadonlyMap<string, TokenData>> {
  const details = new Map<string, TokenData>()
  const trained = turns.filter(({ start, end }) => end > start)
  for (const [among, ofKind] of [
    [turns, kinds.filter((kind) => PROMPT_KINDS.includes(kind))],
    [trained, kinds.filter((kind) => !PROMPT_KINDS.includes(kind))],
  ] as const) {
    if (among.length === 0 || ofKind.length === 0) continue
    const turnIds = among.map(({ turnId }) => turnId)
    for (const [turnId, parts] of await reader.readDetails(sessionId, turnIds, ofKind)) {
      details.set(turnId, { ...details.get(turnId), ...unpackTokenData(parts) })
      // The data of one turn may have tens of megabytes.
      await yieldToEventLoop()
    }
  }
  return details
}

/** Yields the JSON members with the details of a row. Each requested kind is present; null: no turn reported it. */
export async function* writeDetailMembers(
  reader: Pick<TurnReader, 'readDetails'>,
  sessionId: string,
  getLayout: () => RowLayout,
  kinds: readonly TokenDataKind[],
): AsyncGenerator<string> {
  if (kinds.length === 0) return
  const layout = getLayout()
  const row = collectRowDetails(layout, await readStoredDetails(reader, sessionId, layout.turns, kinds))
  for (const kind of kinds) yield* MEMBERS[kind](row)
}

const MEMBERS: Readonly<Record<TokenDataKind, (row: RowDetails) => Generator<string>>> = {
  *sampling_mask({ sampling_mask: rows }) {
    yield* writeMember('sampling_mask', writeList(rows, formatIds))
    yield* writeMember('sampling_mask_logprobs', writeList(hasLogprobs(rows) ? rows : null, formatLogprobs))
  },
  *sampling_logprobs({ sampling_logprobs: logprobs }) {
    yield* writeMember('sampling_logprobs', writeList(logprobs, JSON.stringify))
  },
  *top_logprobs({ top_logprobs: rows }) {
    yield* writeMember('top_logprob_ids', writeList(rows, formatIds))
    yield* writeMember('top_logprobs', writeList(rows, formatLogprobs))
  },
  *prompt_logprobs({ prompt_logprobs: rows }) {
    yield* writeMember('prompt_logprob_ids', writeList(rows, formatIds))
    yield* writeMember('prompt_logprobs', writeList(rows, formatLogprobs))
  },
  *routed_experts({ routed_experts: experts }) {
    yield* writeMember('routed_experts', experts === null ? ['null'] : writeExpertsText(experts))
  },
  *weight_versions({ weight_versions: spans }) {
    yield* writeMember('weight_versions', [JSON.stringify(spans)])
  },
  *teacher_logprobs({ teacher, teacher_logprobs: logprobs }) {
    yield* writeMember('teacher', [JSON.stringify(teacher)])
    yield* writeMember('teacher_logprobs', writeList(logprobs, JSON.stringify))
  },
  ...createNumberMembers('advantages', 'ratios', 'entropies', 'loss_weights'),
}

function createNumberMembers<Kind extends Exclude<TrainerDataKind, 'teacher_logprobs'>>(...kinds: Kind[]) {
  const members = kinds.map((kind) => [
    kind,
    (row: RowDetails) => writeMember(kind, writeList(row[kind], JSON.stringify)),
  ])
  return Object.fromEntries(members) as Record<Kind, (row: RowDetails) => Generator<string>>
}

/** The number of entries in one chunk of JSON text. */
const ENTRIES_PER_CHUNK = 256

function* writeList<Entry>(
  entries: readonly (Entry | null)[] | null,
  text: (entry: Entry) => string,
): Generator<string> {
  if (entries === null) return yield 'null'
  yield '['
  for (let start = 0; start < entries.length; start += ENTRIES_PER_CHUNK) {
    const chunk = entries.slice(start, start + ENTRIES_PER_CHUNK)
    const texts = chunk.map((entry) => (entry === null ? 'null' : text(entry)))
    yield (start > 0 ? ',' : '') + texts.join(',')
  }
  yield ']'
}

function formatIds({ ids }: TokenRow): string {
  return `[${ids.join(',')}]`
}

/**
 * Formats logprobs. JSON.stringify writes null for a logprob that is not finite, such as NaN, which marks a logprob
 * that the engine did not report.
 */
function formatLogprobs({ logprobs }: TokenRow): string {
  return JSON.stringify(logprobs ?? null)
}

function hasLogprobs(rows: readonly (TokenRow | null)[] | null): boolean {
  return rows?.some((row) => row?.logprobs !== undefined) ?? false
}

/** The NumPy names of tensor types. */
const DTYPES: Readonly<Record<Tensor['dtype'], string>> = {
  U8: 'uint8',
  I8: 'int8',
  U16: 'uint16',
  I16: 'int16',
  I32: 'int32',
  F32: 'float32',
  F64: 'float64',
}

/** The number of bytes in one chunk; a multiple of three, so that chunks of base64 can be concatenated. */
const BYTES_PER_CHUNK = 3 * 16_384

function* writeExpertsText({ dtype, shape, data, known }: RowExperts): Generator<string> {
  const head = JSON.stringify({ dtype: DTYPES[dtype], shape, known })
  yield `${head.slice(0, -1)},"data":"`
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength)
  for (let start = 0; start < bytes.length; start += BYTES_PER_CHUNK)
    yield bytes.toString('base64', start, start + BYTES_PER_CHUNK)
  yield '"}'
}
