import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { EngineClient } from '../port/engine-client.ts'

/** A tokenizer, and the name that is displayed as the source of its texts. */
export interface TokenizerWithName {
  name: string
  tokenizer: Tokenizer
}

/** The properties of an engine that this module reads. */
interface EngineWithModels {
  client: Pick<EngineClient, 'name' | 'getTokenTexts'>
  watch: { healthy: boolean; models: readonly { id: string }[] }
}

/** The time limit for a busy engine; after it, ids are displayed instead of text. */
const TIMEOUT_MS = 10_000

/**
 * Returns a function that reads the texts of tokens: with the named tokenizer or, without one, with the embedded
 * model's tokenizer for tokens that this model sampled, and from an engine for tokens of other models.
 * @param loadEmbedded called once, for the first ids that the embedded model sampled; absent: there is no embedded
 *   model
 * @returns a function that resolves to undefined if no tokenizer and no engine is available for the model
 */
export function createTokenTextReader(
  named: TokenizerWithName | undefined,
  loadEmbedded: (() => Tokenizer) | undefined,
  engines: () => readonly EngineWithModels[] = () => [],
) {
  let embedded: Tokenizer | undefined
  return async (model: string | null, ids: Int32Array) => {
    if (named !== undefined)
      return { source: named.name, texts: await computeTokenTexts(named.tokenizer, ids) }
    if (model === null) return undefined
    if (model !== 'embedded' || loadEmbedded === undefined) return queryEngines(engines(), model, ids)
    embedded ??= loadEmbedded()
    return { source: model, texts: await computeTokenTexts(embedded, ids) }
  }
}

async function queryEngines(engines: readonly EngineWithModels[], model: string, ids: Int32Array) {
  for (const { client, watch } of engines) {
    if (!watch.healthy || !watch.models.some(({ id }) => id === model)) continue
    const signal = AbortSignal.timeout(TIMEOUT_MS)
    // An error is ignored: no request depends on these texts.
    const texts = await client.getTokenTexts?.(model, ids, signal).catch(() => undefined)
    if (texts !== undefined) return { source: client.name, texts }
  }
  return undefined
}

/** The number of tokens per time slice, which takes some milliseconds. */
const SLICE_TOKENS = 10_000

/**
 * Returns the text that each token adds. A character that spans several tokens belongs to the last of them, and the
 * others have empty text, so that all texts joined are the text of the ids.
 */
export async function computeTokenTexts(tokenizer: Tokenizer, ids: Int32Array): Promise<string[]> {
  const decoder = new StreamingDecoder(tokenizer)
  const texts: string[] = []
  for (const [index, id] of ids.entries()) {
    texts.push(decoder.push([id]))
    if (index % SLICE_TOKENS === SLICE_TOKENS - 1) await yieldToEventLoop()
  }
  if (texts.length > 0) texts[texts.length - 1] += decoder.flush()
  return texts
}
