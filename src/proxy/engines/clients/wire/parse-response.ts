/**
 * `JSON.parse` for engines' responses, optimized for their largest part: a prompt of forty thousand ids is a quarter of
 * a megabyte of JSON in each response. Parsing ids from the bytes takes a third of the CPU time of a string and an
 * array of numbers (0.3 ms instead of 1.0 ms), and hardly any memory.
 */
import { randomUUID } from 'node:crypto'
import { isRecord } from '../../../../base/json.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import { readIds } from '../../../../protocol/token-ids/token-ids-json.ts'

const KEY = Buffer.from('"prompt_token_ids":[')
/** A placeholder for the list in the JSON, which no engine can guess. */
const PLACEHOLDER = randomUUID()
const [LIST_END, BACKSLASH] = [0x5d, 0x5c]

/** A parser of comma-separated ids in a byte range; it returns undefined for any other content. */
export type PromptIdParser = (bytes: Buffer, start: number, end: number) => PromptIds | undefined

/**
 * Parses JSON.
 * @param json text, or its UTF-8
 * @returns as `JSON.parse`, but `prompt_token_ids`, at the root or in a choice, may be {@link PromptIds}
 * @throws SyntaxError
 */
export function parseResponse(json: string | Buffer, read: PromptIdParser = readUncached): unknown {
  const extracted = typeof json === 'string' ? undefined : extractIds(json, read)
  return (extracted && withIds(extracted)) ?? JSON.parse(json.toString())
}

/** JSON with {@link PLACEHOLDER} in place of the list of ids. */
interface IdExtraction {
  json: string
  ids: PromptIds
}

/**
 * Extracts the list of ids. In valid JSON a match is the key itself: in a string value its closing quote would be
 * escaped, and in a longer key that ends with it, its opening quote. Lists with spaces or other values are left to the
 * parser.
 */
function extractIds(json: Buffer, read: PromptIdParser): IdExtraction | undefined {
  const key = json.indexOf(KEY)
  if (key < 1 || json[key - 1] === BACKSLASH) return undefined
  const start = key + KEY.length
  const end = json.indexOf(LIST_END, start)
  const ids = end === -1 ? undefined : read(json, start, end)
  if (ids === undefined) return undefined
  return {
    json: `${json.toString('utf8', 0, start - 1)}"${PLACEHOLDER}"${json.toString('utf8', end + 1)}`,
    ids,
  }
}

/** Inserts the ids. @returns undefined if the list was at a location that readers of responses ignore */
function withIds({ json, ids }: IdExtraction): unknown {
  const response: unknown = JSON.parse(json)
  if (!isRecord(response)) return undefined
  const choices: unknown[] = Array.isArray(response.choices) ? response.choices : []
  const holder = [response, ...choices]
    .filter(isRecord)
    .find((object) => object.prompt_token_ids === PLACEHOLDER)
  if (holder === undefined) return undefined
  holder.prompt_token_ids = ids
  return response
}

const readUncached: PromptIdParser = (bytes, start, end) => {
  const ids = readIds(bytes, start, end)
  return ids && new PromptIds(ids)
}
