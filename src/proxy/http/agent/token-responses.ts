/**
 * Writes the responses of vLLM's `/tokenize` and `/detokenize` as JSON, in time slices: a request may have millions of
 * ids, for which converting them at once would block the event loop for seconds.
 */
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'

/** The number of ids per time slice: looking up or decoding them takes about 10 ms. */
const IDS_PER_SLICE = 8_192

/**
 * Yields the parts of a response to `/tokenize`.
 * @param tokenizer returns the tokens' texts in the vocabulary, for `token_strs`; absent: the response has none
 */
export async function* writeTokens(
  tokens: TokenIds,
  contextLength: number | undefined,
  tokenizer?: Pick<Tokenizer, 'idToToken'>,
): AsyncGenerator<string, void> {
  yield `{"count":${tokens.length},"max_model_len":${contextLength ?? null},"tokens":[`
  yield* writeList(tokens, String)
  yield '],"token_strs":'
  if (tokenizer === undefined) yield 'null}'
  else {
    yield '['
    yield* writeList(tokens, (id) => JSON.stringify(tokenizer.idToToken(id) ?? ''))
    yield ']}'
  }
}

async function* writeList(tokens: TokenIds, toJson: (id: number) => string): AsyncGenerator<string, void> {
  let separator = ''
  for await (const slice of cutIntoSlices(tokens)) {
    yield separator + Array.from(slice, toJson).join(',')
    separator = ','
  }
}

/** Yields the parts of a response to `/detokenize`. */
export async function* writeText(tokens: TokenIds, tokenizer: Tokenizer): AsyncGenerator<string, void> {
  const decoder = new StreamingDecoder(tokenizer, { startsText: true })
  yield '{"prompt":"'
  for await (const slice of cutIntoSlices(tokens)) yield escapeJson(decoder.push(slice))
  yield `${escapeJson(decoder.flush())}"}`
}

/** Yields the ids in slices, each in a later iteration of the event loop than the previous one. */
async function* cutIntoSlices(tokens: TokenIds): AsyncGenerator<TokenIds, void> {
  for (let from = 0; from < tokens.length; from += IDS_PER_SLICE) {
    if (from > 0) await yieldToEventLoop()
    yield tokens.slice(from, from + IDS_PER_SLICE)
  }
}

function escapeJson(text: string): string {
  return JSON.stringify(text).slice(1, -1)
}
