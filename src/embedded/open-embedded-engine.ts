/** Creates the embedded engine from the options of a proxy or a worker. */
import { ProxyError } from '../base/errors.ts'
import type { EngineClient, EngineKind } from '../proxy/engines/port/engine-client.ts'
import { EmbeddedEngine } from './engine/embedded-engine.ts'
import { Playbook } from './engine/playbook.ts'

export {
  getEmbeddedModelFolder as embeddedModelFolder,
  loadEmbeddedTokenizer,
} from './engine/embedded-model.ts'

/** The options of a proxy or worker that concern its embedded engine. */
export interface EmbeddedEngineConfig {
  engineKind: EngineKind | 'auto'
  /** The path of a playbook. Default: the built-in playbook. */
  playbook?: string | undefined
  /** The name of the embedded model. Default: `embedded`. */
  model?: string | undefined
}

/**
 * Opens the embedded engine. A configured kind of inference server is an error: the completions of the embedded engine
 * would be trained on in place of the server's.
 * @throws ProxyError `config_invalid` for an invalid playbook, or if `engineKind` is another kind than `embedded`
 */
export function openEmbeddedEngine({ engineKind, playbook, model }: EmbeddedEngineConfig): EngineClient {
  if (engineKind !== 'auto' && engineKind !== 'embedded')
    throw new ProxyError(
      'config_invalid',
      `an engine of kind ${engineKind} needs a URL: set --engine-url, or omit --engine-kind to use the embedded engine`,
    )
  const forced = playbook === undefined ? undefined : Playbook.fromFile(playbook)
  return new EmbeddedEngine({ model, playbook: forced })
}
