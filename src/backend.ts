/** Opens the backend: engines in local mode, connected workers in relay mode. */
import type { Logger } from './base/logger.ts'
import { openEngines } from './open-engines.ts'
import { isOpenDoor, usesFallbackEngine } from './proxy/config/notes.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import { checkEngines, createEngineClient } from './proxy/engines/clients/create-clients.ts'
import type { SocketConnector } from './proxy/engines/clients/wire/connection.ts'
import type { EngineEntry } from './proxy/engines/dispatch/engine-pool.ts'
import { EngineRegistry } from './proxy/engines/dispatch/engine-registry.ts'
import { createLocalBackend } from './proxy/engines/dispatch/local-backend.ts'
import type { Backend } from './proxy/engines/port/backend.ts'
import { createTokenizerQuery, type ExpectedTokenizer } from './proxy/engines/port/expected-tokenizer.ts'
import type { MemberRegistry } from './proxy/engines/port/registry.ts'
import type { ProxyMetrics } from './proxy/metrics/proxy-metrics.ts'
import { rejectWorkers } from './proxy/relay/reject-workers.ts'
import { RelayBackend } from './proxy/relay/relay-backend.ts'
import type { ByteCounter, RelaySocket } from './proxy/relay/relay-socket.ts'

interface BackendParts {
  metrics: ProxyMetrics
  logger: Logger
  connect: SocketConnector | undefined
  /** Token mode: the tokenizer that every engine must have; undefined in chat mode. */
  tokenizer: ExpectedTokenizer | undefined
}

/** An open backend, with the parts that depend on its mode. */
interface OpenBackend {
  /** The caller closes it. */
  backend: Backend
  registry: MemberRegistry
  /** Returns the engines of local mode; an empty list in relay mode, where the engines belong to the workers. */
  engines(): readonly EngineEntry[]
  /**
   * Accepts the socket of a worker; closes it in local mode.
   * @param greeted called when the worker's `hello` has been accepted
   * @param connection the connection of the socket, which counts the bytes that it receives
   */
  acceptWorker(socket: RelaySocket, greeted: () => void, connection: ByteCounter): void
}

/**
 * Opens the backend of the mode.
 * @throws ProxyError `start_failed` if no engine of local mode responds, `config_invalid`
 */
export function openBackend(config: ServeConfig, parts: BackendParts): Promise<OpenBackend> {
  return config.mode === 'relay' ? openRelay(config, parts) : openLocal(config, parts)
}

async function openLocal(
  config: ServeConfig,
  { metrics, logger, connect, tokenizer }: BackendParts,
): Promise<OpenBackend> {
  const servers = { ...config, connect }
  const clients = config.awaitEngines ? [] : openEngines(servers)
  const backend = createLocalBackend({
    ...toQueueOptions(config),
    clients,
    known: await checkEngines(clients, tokenizer && createTokenizerQuery(tokenizer)),
    tokenizer,
    areFallbacks: usesFallbackEngine(config),
    measuresLogprobs: true,
    adaptsEfforts: true,
    maxConcurrencyPerEngine: config.maxConcurrency,
    healthIntervalMs: config.healthIntervalMs,
    logger,
    watch: metrics.dispatch,
  })
  const registry = new EngineRegistry({
    backend,
    // Without keys, any client may register an engine, which must not receive the key of the others.
    open: (url) =>
      createEngineClient(isOpenDoor(config) ? { ...servers, engineApiKey: undefined } : servers, url),
    needsTokenIds: config.tokenizer !== undefined,
    logger,
  })
  return { backend, registry, engines: () => backend.engines.list(), acceptWorker: rejectWorkers }
}

async function openRelay(
  config: ServeConfig,
  { metrics, logger, tokenizer }: BackendParts,
): Promise<OpenBackend> {
  const relay = new RelayBackend({
    ...toQueueOptions(config),
    logger,
    tokenizer,
    watch: metrics.dispatch,
    requestTimeoutMs: config.relayTimeoutMs,
    graceMs: config.workerGraceMs,
    heartbeatMs: config.heartbeatIntervalMs,
    v1MaxConcurrency: config.maxConcurrency,
  })
  const acceptWorker: OpenBackend['acceptWorker'] = (socket, greeted, connection) => {
    const onGreeted = () => {
      metrics.countWorkerConnection()
      greeted()
    }
    relay.accept(socket, onGreeted, connection)
  }
  return { backend: relay, registry: relay, engines: () => [], acceptWorker }
}

function toQueueOptions({ queueLimit, queueWaitMs: waitMs, pauseLimitMs }: ServeConfig) {
  return { queueLimit, waitMs, pauseLimitMs }
}
