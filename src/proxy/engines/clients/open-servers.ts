/** From a choice of engines' servers to their clients. */
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import type { EngineClient, EngineHealth, EngineKind } from '../port/engine-client.ts'
import type { TokenizerQuestion } from '../port/expected-tokenizer.ts'
import { createAutoClient } from './auto-client.ts'
import { CLIENT_OF_KIND } from './client-of-kind.ts'
import type { Connect, ConnectionOptions } from './wire/connection.ts'

/** How servers are spoken to. */
export interface ServerChoice {
  engineKind: EngineKind | 'auto'
  engineApiKey?: string | undefined
  /** Names of headers, with commas between them; `none` for none. */
  engineSessionHeader?: string | undefined
  /** Opens sockets to engines; see {@link ConnectionOptions}. */
  connect?: Connect | undefined
}

/** The client of one server. @throws ProxyError `config_invalid` for a URL that is none */
export function openServer(
  { engineKind, engineApiKey, engineSessionHeader, connect }: ServerChoice,
  url: string,
): EngineClient {
  const sessionHeaders = parseSessionHeaders(engineSessionHeader ?? 'none')
  const options = { url, apiKey: engineApiKey, sessionHeaders, connect }
  const isFoundOut = engineKind === 'auto' || engineKind === 'embedded'
  return isFoundOut ? createAutoClient(options) : CLIENT_OF_KIND[engineKind](options)
}

/** @throws ProxyError `config_invalid` for what cannot be a header, or is one that a call has anyway */
function parseSessionHeaders(names: string): string[] {
  if (names === 'none') return []
  return names.split(',').map((part) => {
    const name = part.trim()
    const isTaken = ['authorization', 'content-type', 'content-length', 'host'].includes(name.toLowerCase())
    if (/^[\w-]+$/.test(name) && !isTaken) return name
    throw new ProxyError(
      'config_invalid',
      `engine-session-header: ${name || 'nothing'} cannot be a header's name here`,
    )
  })
}

/** How long an engine may take to answer the first question that is put to it. */
const CHECK_MS = 10_000

/**
 * Asks each engine whether it serves, and what its tokenizer does. One that answers is enough to start with: a dead one among healthy ones must
 * not keep a cluster from training. None at all is a mistake in the configuration more often than not.
 * @returns what those that answered said, by the names of their clients
 * @throws ProxyError `start_failed` when none answers
 */
export async function checkEngines(
  clients: readonly EngineClient[],
  logger: Logger,
  question?: TokenizerQuestion,
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
  for (const { engine, error } of failures) logger.warn({ engine, code: error.code }, error.message)
  const [first] = failures
  if (first === undefined || failures.length < clients.length) return healths
  throw new ProxyError(
    'start_failed',
    `no engine answers: ${first.error.message}; start the engine, or correct --engine-url ${first.engine}`,
    { cause: first.error },
  )
}
