/** Opens the engines of a proxy in local mode, of a worker or of a command. */
import { type EmbeddedEngineConfig, requireProduct } from './included-products.ts'
import { createEngineClients, type EngineServersConfig } from './proxy/engines/clients/create-clients.ts'
import type { EngineClient } from './proxy/engines/port/engine-client.ts'

/** The configuration that selects the engines. */
export type EnginesConfig = EngineServersConfig & EmbeddedEngineConfig

/**
 * Opens a client for each configured server, or the embedded engine if no server is configured.
 * @throws ProxyError `config_invalid` for an invalid playbook or URL, and for a kind of server without a URL
 */
export function openEngines(choice: EnginesConfig): EngineClient[] {
  if (choice.engineUrls.length > 0) return createEngineClients(choice)
  return [requireProduct('embedded', 'give --engine-url').openEmbeddedEngine(choice)]
}
