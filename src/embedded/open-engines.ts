/** Opens clients of the chosen engines: of the given servers, or else of the embedded engine. */
import { ProxyError } from '../base/errors.ts'
import { openServers, type ServerChoice, type ServersChoice } from '../proxy/engines/clients/open-servers.ts'
import type { EngineClient } from '../proxy/engines/port/engine-client.ts'
import { EmbeddedEngine } from './engine/embedded-engine.ts'
import { Playbook } from './engine/playbook.ts'

export { embeddedModelFolder, loadEmbeddedTokenizer } from './engine/embedded-model.ts'

export interface EngineChoice extends ServersChoice {
  /** Options of the embedded engine: a file of forced completions, and the name of its model. */
  playbook?: string | undefined
  model?: string | undefined
}

/**
 * Opens the engines.
 * @throws ProxyError `config_invalid` for an invalid playbook or URL, and for a kind of server without a URL
 */
export function openEngines(choice: EngineChoice): EngineClient[] {
  const { engineUrls, engineKind, playbook, model } = choice
  if (engineUrls.length > 0) return openServers(choice)
  rejectServerWithoutUrl(engineKind)
  const forced = playbook === undefined ? undefined : Playbook.fromFile(playbook)
  return [new EmbeddedEngine({ model, playbook: forced })]
}

/** Rejects a kind of server without a URL: completions of the embedded engine in its place would be trained on. */
function rejectServerWithoutUrl(kind: ServerChoice['engineKind']): void {
  if (kind === 'auto' || kind === 'embedded') return
  throw new ProxyError(
    'config_invalid',
    `engines of kind ${kind} have a URL: give --engine-url, or leave out --engine-kind for the embedded engine`,
  )
}
