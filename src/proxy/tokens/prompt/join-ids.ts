/** Where recorded ids end and new ones begin. */
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { NewPart } from './prompt-engine.ts'
import type { Refused } from './refusal.ts'

export interface JoinedIds {
  /** The end of turn that the completion lacks. */
  glueIds: number[]
  /** The template's separator, the new messages and the generation prompt. */
  newIds: TokenIds
}

export interface CompletionEnd {
  /** undefined if nothing was sampled. */
  lastId: number | undefined
  /** Whether that is an id that ends a turn for the engine, be it the template's or another one. */
  endedItself: boolean
}

/**
 * @param ids the token that ends a turn, where there is one, and the new part, tokenized as one text: they are what
 *   they are behind any past if they begin with a special token
 */
export function joinIds(
  ids: TokenIds,
  { endId, closingIds }: Omit<NewPart, 'text'>,
  completion: CompletionEnd,
  tokenizer: Tokenizer,
): JoinedIds | Refused {
  const first = ids[0]
  if (first === undefined || !tokenizer.isAdded(first)) return { refused: 'no_token_boundary' }
  if (endId === undefined) return joinAtOpening(ids, completion)
  const glueIds = missingOf(closingIds, completion)
  return first === endId ? { glueIds, newIds: ids.slice(1) } : { refused: 'no_token_boundary' }
}

/** A completion that ended itself is not ended again, whatever it ended with (Llama's `<|eom_id|>`). */
function missingOf(closingIds: readonly number[], { lastId, endedItself }: CompletionEnd): number[] {
  if (endedItself) return []
  const written = lastId === undefined ? -1 : closingIds.indexOf(lastId)
  return closingIds.slice(written + 1)
}

/** The completion may have opened the next message; one that opened another message cannot be gone on from. */
function joinAtOpening(ids: TokenIds, { lastId, endedItself }: CompletionEnd): JoinedIds | Refused {
  if (lastId === ids[0]) return { glueIds: [], newIds: ids.slice(1) }
  return endedItself ? { refused: 'other_message_opened' } : { glueIds: [], newIds: ids }
}
