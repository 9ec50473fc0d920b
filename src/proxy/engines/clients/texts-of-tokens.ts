import { tokenTexts } from '../../tokens/model/token-texts.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { EngineClient } from '../port/engine-client.ts'

export interface NamedTokenizer {
  name: string
  tokenizer: Tokenizer
}

/** An engine that serves, as far as it matters here. */
interface Serving {
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
export function textsOfTokens(
  named: NamedTokenizer | undefined,
  loadEmbedded: () => Tokenizer,
  engines: () => readonly Serving[] = () => [],
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

async function askEngines(engines: readonly Serving[], model: string, ids: Int32Array) {
  for (const { client, watch } of engines) {
    if (!watch.healthy || !watch.models.some(({ id }) => id === model)) continue
    const signal = AbortSignal.timeout(ANSWER_MS)
    // One that does not answer, or has no such route, is as good as none: nobody's call hangs on it.
    const texts = await client.tokenTexts?.(model, ids, signal).catch(() => undefined)
    if (texts !== undefined) return { source: client.name, texts }
  }
  return undefined
}
