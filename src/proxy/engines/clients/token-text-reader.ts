import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { EngineClient } from '../port/engine-client.ts'

export interface TokenizerWithName {
  name: string
  tokenizer: Tokenizer
}

/** An engine that serves, as far as it matters here. */
interface EngineWithModels {
  client: Pick<EngineClient, 'name' | 'tokenTexts'>
  watch: { healthy: boolean; models: readonly { id: string }[] }
}

/** An engine that is busy is not waited for any longer: ids are shown then. */
const ANSWER_MS = 10_000

/**
 * Tells what tokens read like: by this tokenizer or, without one, by the embedded model's own for what that model sampled,
 * else by an engine that serves the model and tells.
 * @param loadEmbedded is called once, for the first ids that the embedded model sampled
 * @returns undefined where no tokenizer is known
 */
export function createTokenTextReader(
  named: TokenizerWithName | undefined,
  loadEmbedded: () => Tokenizer,
  engines: () => readonly EngineWithModels[] = () => [],
) {
  let embedded: Tokenizer | undefined
  return async (model: string | null, ids: Int32Array) => {
    if (named !== undefined) return { source: named.name, texts: await tokenTexts(named.tokenizer, ids) }
    if (model === null) return undefined
    if (model !== 'embedded') return askEngines(engines(), model, ids)
    embedded ??= loadEmbedded()
    return { source: model, texts: await tokenTexts(embedded, ids) }
  }
}

async function askEngines(engines: readonly EngineWithModels[], model: string, ids: Int32Array) {
  for (const { client, watch } of engines) {
    if (!watch.healthy || !watch.models.some(({ id }) => id === model)) continue
    const signal = AbortSignal.timeout(ANSWER_MS)
    // One that does not answer, or has no such route, is as good as none: nobody's call hangs on it.
    const texts = await client.tokenTexts?.(model, ids, signal).catch(() => undefined)
    if (texts !== undefined) return { source: client.name, texts }
  }
  return undefined
}

/** Tokens between two looks at other work: some milliseconds. */
const STRETCH = 10_000

/**
 * What each token adds to the text: a character that is spread over several tokens is the text of the last of them, and
 * the others' is empty. All of them together are the text of the ids.
 */
export async function tokenTexts(tokenizer: Tokenizer, ids: Int32Array): Promise<string[]> {
  const decoder = new StreamingDecoder(tokenizer)
  const texts: string[] = []
  for (const [place, id] of ids.entries()) {
    texts.push(decoder.push([id]))
    if (place % STRETCH === STRETCH - 1) await yieldToEventLoop()
  }
  if (texts.length > 0) texts[texts.length - 1] += decoder.flush()
  return texts
}
