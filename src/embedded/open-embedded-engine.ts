/** Creates the embedded engine from the options of a proxy or a worker. */
import { ProxyError } from '../base/errors.ts'
import type { EngineClient, EngineKind } from '../proxy/engines/port/engine-client.ts'
import { EmbeddedEngine } from './engine/embedded-engine.ts'
import { Playbook } from './engine/playbook.ts'

export {
  getEmbeddedModelFolder as embeddedModelFolder,
  loadEmbeddedTokenizer,
} from './engine/embedded-model.ts'

export interface EmbeddedEngineConfig {
  engineKind: EngineKind | 'auto'
  /** A file of forced completions. Default: none. */
  playbook?: string | undefined
  /** The name of its model. */
  model?: string | undefined
}

/**
 * Opens the embedded engine. A kind of server is an error, since completions of the embedded engine in its place would
 * be trained on.
 * @throws ProxyError `config_invalid` for an invalid playbook and for a kind of server
 */
export function openEmbeddedEngine({ engineKind, playbook, model }: EmbeddedEngineConfig): EngineClient {
  if (engineKind !== 'auto' && engineKind !== 'embedded')
    throw new ProxyError(
      'config_invalid',
      `engines of kind ${engineKind} have a URL: give --engine-url, or leave out --engine-kind for the embedded engine`,
    )
  const forced = playbook === undefined ? undefined : Playbook.fromFile(playbook)
  return new EmbeddedEngine({ model, playbook: forced })
}
