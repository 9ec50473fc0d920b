/** Reads single training-ready rows: their summaries, and their tokens in binary form. */
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import { yieldToEventLoop } from '../../../../base/yield-to-event-loop.ts'
import { TRAINER_DATA_KINDS } from '../../../../protocol/token-data/kinds.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import { collectRowDetails } from '../../../session/trajectories/row-details.ts'
import {
  type RowWithLayout,
  type Trajectory,
  TrajectoryBuilder,
} from '../../../session/trajectories/trajectories.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'
import { readStoredDetails } from './details.ts'
import type { RowsQuery } from './read-schemas.ts'
import { addFormerNames } from './serialise.ts'

/** The value of `turns` for a token that no turn sampled. */
const NO_TURN = -1

type RowQuery = Static<typeof RowsQuery>

/**
 * Reads the turns of a session.
 * @returns its rows, each of which is assembled when it is iterated, and the models by turn index
 * @throws ProxyError `session_not_found` for a session that was removed or reset while it was read
 */
export async function readRows(reader: TurnReader, session: SessionRecord, query: RowQuery) {
  const builder = new TrajectoryBuilder({ sideCalls: query.side_calls })
  const models = new Map<number, string | null>()
  for await (const turn of reader.readSteps(session.sessionId)) {
    builder.add(turn)
    models.set(turn.index, turn.model)
  }
  await rejectPartial(reader, session)
  return { placed: builder.locateRows({ select: 'all' }, session.reward, session.marks), models }
}

/** Reads one row by its number. @throws ProxyError `row_not_found` */
export async function readRow(reader: TurnReader, session: SessionRecord, number: number, query: RowQuery) {
  const { placed, models } = await readRows(reader, session, query)
  let index = 0
  for (const { row, computeLayout: layout } of placed) {
    if (index === number) return { row, layout, model: models.get(row.turns.at(-1)!.index) ?? null }
    index += 1
  }
  throw new ProxyError('row_not_found', `The session has ${index} rows, counted from 0`)
}

/** Yields the summaries of rows as chunks of one JSON text. One row is in memory at a time. */
export async function* writeRowSummaries(rows: Iterable<RowWithLayout>): AsyncGenerator<string> {
  yield '{"rows":['
  let number = 0
  for (const { row } of rows) {
    yield (number > 0 ? ',' : '') + JSON.stringify(summarizeRow(row, number))
    number += 1
    // The summary of a row is short, also if its tokens took long to assemble.
    await yieldToEventLoop()
  }
  yield ']}'
}

/** Returns a row without its arrays, with their lengths and statistics. */
export function summarizeRow(row: Trajectory, number: number) {
  const { prompt_ids, response_ids, response_mask, response_logprobs, ...rest } = row
  let [trained, sum, lowest] = [0, 0, 0]
  for (const [index, bit] of response_mask.entries()) {
    if (bit === 0) continue
    const logprob = response_logprobs[index]!
    trained += 1
    sum += logprob
    lowest = Math.min(lowest, logprob)
  }
  return {
    row: number,
    prompt_tokens: prompt_ids.length,
    response_tokens: response_ids.length,
    trained_tokens: trained,
    mean_logprob: trained === 0 ? null : limitToFinite(sum / trained),
    min_logprob: trained === 0 ? null : limitToFinite(lowest),
    ...addFormerNames(rest),
  }
}

/** The text that each token adds, and the tokenizer that decoded it. */
export interface TokenTexts {
  source: string
  texts: readonly string[]
}

/** Returns the ids of the prompt and the response. */
export function getRowIds({ prompt_ids: prompt, response_ids: response }: Trajectory): Int32Array {
  const ids = new Int32Array(prompt.length + response.length)
  ids.set(prompt)
  ids.set(response, prompt.length)
  return ids
}

/** Lists with a number for each token of the response, by name. */
type TokenNumberLists = Readonly<Record<string, readonly (number | null)[]>>

/** Returns the numbers that a trainer or a teacher added to the row's tokens. */
export async function readTrainerData(
  reader: Pick<TurnReader, 'readDetails'>,
  sessionId: string,
  { computeLayout: layoutOf }: Pick<RowWithLayout, 'computeLayout'>,
): Promise<TokenNumberLists> {
  const layout = layoutOf()
  const details = collectRowDetails(
    layout,
    await readStoredDetails(reader, sessionId, layout.turns, TRAINER_DATA_KINDS),
  )
  return Object.fromEntries(
    TRAINER_DATA_KINDS.flatMap((kind) => (details[kind] ? [[kind, details[kind]]] : [])),
  )
}

/**
 * Yields a safetensors file. `ids` are the prompt and the response; the other arrays have one entry for each id, except
 * `text`, the concatenated texts in UTF-8, in which `text_ends` is the end offset of each token.
 * @param rowNumber the index of the row in its session
 * @param trainerData the values that a trainer has added, for each token of the response
 * @param texts the texts of all tokens; undefined: they are omitted
 */
export function* writeRowTensors(
  row: Trajectory,
  rowNumber: number,
  { trainerData, texts }: { trainerData: TokenNumberLists; texts: TokenTexts | undefined },
): Generator<Uint8Array> {
  const promptLength = row.prompt_ids.length
  const ids = getRowIds(row)
  const length = ids.length
  const logprobs = new Float32Array(length)
  logprobs.set(row.response_logprobs, promptLength)
  const mask = new Uint8Array(length)
  mask.set(row.response_mask, promptLength)
  const turns = new Int32Array(length).fill(NO_TURN)
  for (const { index, start, end } of row.turns) turns.fill(index, promptLength + start, promptLength + end)
  yield* writeSafetensors(
    {
      ids: { dtype: 'I32', data: ids },
      logprobs: { dtype: 'F32', data: logprobs },
      turns: { dtype: 'I32', data: turns },
      ...Object.fromEntries(
        Object.entries(trainerData).map(([name, numbers]) => {
          const data = new Float32Array(length).fill(Number.NaN)
          data.set(
            numbers.map((each) => each ?? Number.NaN),
            promptLength,
          )
          return [name, { dtype: 'F32', data }]
        }),
      ),
      ...(texts && { text_ends: { dtype: 'I32', data: getEndOffsets(texts.texts) } }),
      // Arrays of bytes are last, because their lengths would break the alignment of arrays after them.
      mask: { dtype: 'U8', data: mask },
      ...(texts && { text: { dtype: 'U8', data: Buffer.from(texts.texts.join('')) } }),
    },
    { row: JSON.stringify(summarizeRow(row, rowNumber)), ...(texts && { tokenizer: texts.source }) },
  )
}

/** Returns the end offsets of texts, in bytes. */
function getEndOffsets(texts: readonly string[]): Int32Array {
  let end = 0
  return Int32Array.from(texts, (text) => (end += Buffer.byteLength(text)))
}

function limitToFinite(value: number): number {
  return Number.isFinite(value) ? value : -Number.MAX_VALUE
}

/** An array of a safetensors file. */
interface ArrayEntry {
  dtype: 'I32' | 'F32' | 'U8'
  data: Int32Array | Float32Array | Uint8Array
}

/** The alignment of the first array in bytes, so that a reader need not copy the arrays. */
const ALIGNMENT = 8

/**
 * Encodes arrays in the safetensors format: eight bytes with the length of a JSON header, the header, the arrays
 * (https://huggingface.co/docs/safetensors/index#format). All numbers are little-endian, as on all platforms of Node.
 * @param metadata texts by name
 */
function* writeSafetensors(
  tensors: Readonly<Record<string, ArrayEntry>>,
  metadata: Readonly<Record<string, string>>,
): Generator<Uint8Array> {
  const header: Record<string, unknown> = { __metadata__: metadata }
  let end = 0
  for (const [name, { dtype, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape: [data.length], data_offsets: [end, end + data.byteLength] }
    end += data.byteLength
  }
  const json = Buffer.from(JSON.stringify(header))
  const headerLength = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const head = Buffer.alloc(8 + headerLength, ' ')
  head.writeBigUInt64LE(BigInt(headerLength))
  json.copy(head, 8)
  yield head
  for (const { data } of Object.values(tensors)) {
    yield new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
  }
}
