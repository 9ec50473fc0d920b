/** A row's tokens with their texts. */
import { getBytes, sessionPath } from './api.ts'
import { type RowTokens, readRowTokens } from './safetensors.ts'

export interface ReadRow extends RowTokens {
  sessionId: string
}

/** One request, as putting a long row together costs the proxy more than sending it. */
export function rowPath(sessionId: string, row: number): string {
  return sessionPath(sessionId, `/rows/${row}/tokens?texts=true`)
}

export async function loadRow(sessionId: string, row: number, stop?: AbortSignal): Promise<ReadRow> {
  return { sessionId, ...readRowTokens(await getBytes(rowPath(sessionId, row), stop)) }
}

/** A mark for the order of bytes is a token's text like any other. */
const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true })

/** What stands for a token: its text, or its id. */
export function textAt(read: ReadRow, place: number): string {
  return textBetween(read, place, place + 1)
}

/** @param end the first token that is not among them */
export function textBetween({ texts, ids }: ReadRow, from: number, end: number): string {
  if (texts === null) return [...ids.subarray(from, end)].map((id) => ` ${id}`).join('')
  const start = from === 0 ? 0 : texts.ends[from - 1]!
  return from >= end ? '' : UTF8.decode(texts.utf8.subarray(start, texts.ends[end - 1]))
}
