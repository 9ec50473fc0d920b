/** A row's tokens with their texts. */
import { getBytes, getJson, sessionPath } from './api.ts'
import { type RowTokens, readRowTokens } from './safetensors.ts'
import type { TokenTexts } from './wire.ts'

export interface ReadRow extends RowTokens {
  sessionId: string
  /** null: no tokenizer is known for the model. */
  texts: readonly string[] | null
  source: string | null
}

export async function loadRow(sessionId: string, row: number, stop?: AbortSignal): Promise<ReadRow> {
  const path = sessionPath(sessionId, `/rows/${row}`)
  const [tokens, { texts, source }] = await Promise.all([
    getBytes(`${path}/tokens`, stop).then(readRowTokens),
    getJson<TokenTexts>(`${path}/token_texts`, stop),
  ])
  return { sessionId, ...tokens, texts, source }
}

/** What stands for a token: its text, or its id. */
export function textAt({ texts, ids }: ReadRow, place: number): string {
  return texts === null ? ` ${ids[place]}` : texts[place]!
}
