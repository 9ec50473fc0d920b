/** Loads the tokens of a row with their texts. */
import { formatSessionPath, getBytes } from './api.ts'
import type { Row } from './wire.ts'

/** A row of a session with its tokens. */
export interface RowData extends RowTokens {
  sessionId: string
}

/** Loads a row. One request returns all arrays, because assembling a long row costs the proxy more than sending it. */
export async function loadRow(sessionId: string, row: number, stop?: AbortSignal): Promise<RowData> {
  const path = formatSessionPath(sessionId, `/rows/${row}/tokens?texts=true`)
  return { sessionId, ...readRowTokens(await getBytes(path, stop)) }
}

/** The decoder of token texts. It does not remove a byte order mark, which may be the text of a token. */
const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true })

/** Returns the text of a token, or its id if no tokenizer is available. */
export function getTokenText(read: RowData, index: number): string {
  return joinTokenTexts(read, index, index + 1)
}

/**
 * Returns the text of several tokens, or their ids if no tokenizer is available.
 * @param end exclusive
 */
export function joinTokenTexts({ texts, ids }: RowData, from: number, end: number): string {
  if (texts === null) return [...ids.subarray(from, end)].map((id) => ` ${id}`).join('')
  const start = from === 0 ? 0 : texts.ends[from - 1]!
  return from >= end ? '' : UTF8.decode(texts.utf8.subarray(start, texts.ends[end - 1]))
}

/** The arrays of a row, which the API sends as safetensors. */
interface RowTokens {
  row: Row
  ids: Int32Array
  logprobs: Float32Array
  mask: Uint8Array
  /** The index of the turn that sampled each token; -1: none. */
  turns: Int32Array
  /** Tensors that a teacher or the trainer added, by name; NaN for a token without a value. */
  added: ReadonlyMap<string, Float32Array>
  /** The texts of the tokens; null: no tokenizer is available for the model. */
  texts: TokenTexts | null
}

/** The texts of tokens as bytes, because those of a long row are decoded only when they become visible. */
interface TokenTexts {
  utf8: Uint8Array
  /** The end of each token in `utf8`, exclusive. */
  ends: Int32Array
}

/** The names of the tensors that trainers and teachers add (docs/details.md). */
const ADDED = ['teacher_logprobs', 'advantages', 'ratios', 'entropies', 'loss_weights']

/** The byte range of a tensor in a safetensors file. */
interface TensorLocation {
  data_offsets: [number, number]
}

function readRowTokens(buffer: ArrayBuffer): RowTokens {
  const headerLength = Number(new DataView(buffer).getBigUint64(0, true))
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerLength)))
  const start = 8 + headerLength
  const span = (name: string) => {
    const [from, to] = (header[name] as TensorLocation).data_offsets
    return { from: start + from, bytes: to - from }
  }
  const words = <T>(name: string, View: new (buffer: ArrayBuffer, from: number, length: number) => T): T => {
    const { from, bytes } = span(name)
    return new View(buffer, from, bytes / 4)
  }
  const bytes = (name: string) => {
    const { from, bytes: length } = span(name)
    return new Uint8Array(buffer, from, length)
  }
  const { row, tokenizer } = header.__metadata__
  const added = ADDED.filter((name) => name in header).map(
    (name) => [name, words(name, Float32Array)] as const,
  )
  return {
    row: JSON.parse(row) as Row,
    ids: words('ids', Int32Array),
    logprobs: words('logprobs', Float32Array),
    turns: words('turns', Int32Array),
    mask: bytes('mask'),
    added: new Map(added),
    texts: tokenizer === undefined ? null : { utf8: bytes('text'), ends: words('text_ends', Int32Array) },
  }
}
