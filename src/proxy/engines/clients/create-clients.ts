/** Creates and checks the clients of the configured engines. */
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { EngineClient, EngineHealth, EngineKind } from '../port/engine-client.ts'
import type { TokenizerQuery } from '../port/expected-tokenizer.ts'
import { createAutoClient } from './auto-client.ts'
import { CLIENT_OF_KIND } from './client-of-kind.ts'
import type { ConnectionOptions, SocketConnector } from './wire/connection.ts'

/** The options that determine how to connect to servers. */
export interface ServerConnectionConfig {
  engineKind: EngineKind | 'auto'
  engineApiKey?: string | undefined
  /** Header names, separated by commas; `none` for none. */
  engineSessionHeader?: string | undefined
  /** Opens sockets to engines; see {@link ConnectionOptions}. */
  connect?: SocketConnector | undefined
}

export interface EngineServersConfig extends ServerConnectionConfig {
  engineUrls: readonly string[]
}

/** Creates a client for each configured engine. @throws ProxyError `config_invalid` for an invalid URL */
export function createEngineClients(config: EngineServersConfig): EngineClient[] {
  return config.engineUrls.map((url) => createEngineClient(config, url))
}

/** Creates the client of the engine at a URL. @throws ProxyError `config_invalid` for an invalid URL */
export function createEngineClient(
  { engineKind, engineApiKey, engineSessionHeader, connect }: ServerConnectionConfig,
  url: string,
): EngineClient {
  const sessionHeaders = parseSessionHeaders(engineSessionHeader ?? 'none')
  const options = { url, apiKey: engineApiKey, sessionHeaders, connect }
  const isDetected = engineKind === 'auto' || engineKind === 'embedded'
  return isDetected ? createAutoClient(options) : CLIENT_OF_KIND[engineKind](options)
}

/**
 * Parses header names.
 * @throws ProxyError `config_invalid` for an invalid name, or that of a header that every request has
 */
function parseSessionHeaders(names: string): string[] {
  if (names === 'none') return []
  return names.split(',').map((part) => {
    const name = part.trim()
    const isTaken = ['authorization', 'content-type', 'content-length', 'host'].includes(name.toLowerCase())
    if (/^[\w-]+$/.test(name) && !isTaken) return name
    throw new ProxyError(
      'config_invalid',
      `engine-session-header: ${name || 'nothing'} is not a valid name of a session header`,
    )
  })
}

/** The time limit of the initial check of an engine. */
const CHECK_MS = 10_000

/**
 * Checks whether each engine serves, and queries its tokenizer. Succeeds if at least one engine responds: one dead
 * engine must not prevent a cluster from training, whereas a mistake in the configuration is likely if none responds.
 * @returns the results of the engines that responded, by client name
 * @throws ProxyError `start_failed` if none responds
 */
export async function checkEngines(
  clients: readonly EngineClient[],
  question?: TokenizerQuery,
): Promise<ReadonlyMap<string, EngineHealth>> {
  const healths = new Map<string, EngineHealth>()
  const failures: { engine: string; error: ProxyError }[] = []
  const check = async (client: EngineClient) => {
    try {
      healths.set(client.name, await client.checkHealth(AbortSignal.timeout(CHECK_MS), question))
    } catch (thrown) {
      failures.push({ engine: client.name, error: toProxyError(thrown) })
    }
  }
  await Promise.all(clients.map(check))
  const [first] = failures
  if (first === undefined || failures.length < clients.length) return healths
  throw new ProxyError(
    'start_failed',
    `no engine responds: ${first.error.message}; start the engine, or correct --engine-url ${first.engine}`,
    { cause: first.error },
  )
}
