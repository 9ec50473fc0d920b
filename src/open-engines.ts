/** The engines of a proxy in local mode, of a worker or of a command. */
import { type EmbeddedEngineConfig, requireProduct } from './included-products.ts'
import { type EngineServersConfig, openServers } from './proxy/engines/clients/open-servers.ts'
import type { EngineClient } from './proxy/engines/port/engine-client.ts'

export type EnginesConfig = EngineServersConfig & EmbeddedEngineConfig

/**
 * Opens clients of the given servers, or else the embedded engine.
 * @throws ProxyError `config_invalid` for an invalid playbook or URL, and for a kind of server without a URL
 */
export function openEngines(choice: EnginesConfig): EngineClient[] {
  if (choice.engineUrls.length > 0) return openServers(choice)
  return [requireProduct('embedded', 'give --engine-url').openEmbeddedEngine(choice)]
}
