/**
 * The composition root: starts a server from a configuration. Only this file and `server-parts.ts` know every adapter.
 */
import { hostname, networkInterfaces } from 'node:os'
import { AsyncDisposableStack } from '@whatwg-node/disposablestack'
import type { ProxyError } from './base/errors.ts'
import { logEvent } from './base/log-events.ts'
import type { Logger } from './base/logger.ts'
import { VERSION } from './base/version.ts'
import { loadEmbeddedTokenizer } from './embedded/engine/embedded-model.ts'
import { openEngines } from './embedded/open-engines.ts'
import { uiRoutes } from './inspector/routes/routes.ts'
import { MAX_FRAME_BYTES } from './protocol/worker/protocol.ts'
import { fallbackNote, isLoopback, NO_ENGINE_NOTE, namesNoEngine, notesOn } from './proxy/config/notes.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import type { WorkerConfig } from './proxy/config/options/worker.ts'
import { trustedAuthorities } from './proxy/config/trusted-authorities.ts'
import { createTokenTextReader } from './proxy/engines/clients/token-text-reader.ts'
import { createLocalBackend } from './proxy/engines/dispatch/local-backend.ts'
import { RolloutOwners } from './proxy/http/nodes/rollout-owners.ts'
import { openHealthPort } from './proxy/http/operator/health/health-port.ts'
import { getHealth } from './proxy/http/operator/health/health-route.ts'
import { listen, type ServerOptions } from './proxy/http/server.ts'
import { rejectWorkers } from './proxy/relay/reject-workers.ts'
import { describeHeld } from './proxy/session/state/sweeper.ts'
import type { NodeCoordination } from './proxy/store/port/node-coordination.ts'
import type { Promises } from './proxy/store/postgres/connection.ts'
import { databaseName, isPostgresUrl } from './proxy/store/postgres/open.ts'
import { forwardRollouts } from './rollout/server/forward-rollouts.ts'
import { InProcessRollouts } from './rollout/server/in-process-rollouts.ts'
import { rolloutRoutes } from './rollout/server/routes.ts'
import { getCertificateFiles, openParts, type ServerHooks, type ServerParts } from './server-parts.ts'
import { InferenceWorkerClient } from './worker/inference-worker-client.ts'

export type { Platform, ServerHooks } from './server-parts.ts'

export interface RunningServer {
  /** The URL at which the server listens, with the actual port: `http://127.0.0.1:8080`. */
  readonly url: string
  /** The URL of `--health-port`. */
  readonly healthUrl?: string | undefined
  /** Resolves with the cause if the store can commit nothing more until the process is restarted; otherwise never. */
  readonly lost: Promise<ProxyError>
  /**
   * Rejects new requests, waits up to `graceMs` for running ones, then cancels them and closes everything.
   * @returns whether all of them completed
   */
  stop(graceMs: number): Promise<{ drained: boolean }>
}

/**
 * Opens the database, connects to the engines and listens.
 * @throws ProxyError `start_failed`, `store_failed` or `config_invalid`; the operating system's error if it cannot
 * listen
 */
export async function startServer(config: ServeConfig, hooks: ServerHooks): Promise<RunningServer> {
  const { logger, outside = {} } = hooks
  await using opened = new AsyncDisposableStack()
  const parts = await openParts(config, hooks, opened)
  const { store, backend, sessions, drift, runner, nodes } = parts
  const owners = store.shared && nodes && new RolloutOwners(store.shared, nodes)
  const rollouts = config.runner === undefined ? undefined : new InProcessRollouts(config, logger, owners)
  const http = await (outside.listen ?? listen)(httpOptions(config, parts, rollouts, logger))
  opened.defer(() => http.close())
  const { host, healthPort: port, basePath } = config
  const health = async () => {
    const { code, health } = await getHealth({ backend, runner, store })
    return { code, body: JSON.stringify(health) }
  }
  const healthPort = port === undefined ? undefined : await openHealthPort({ host, port, basePath, health })
  if (healthPort) opened.defer(() => healthPort.close())
  if (drift) opened.defer(() => drift.close())
  // Deferred first, because it ends the long polls that the server would wait for.
  opened.defer(() => sessions.close())
  // All notes are one line. They are logged after the server listens, so that they do not hide the reason why it
  // cannot.
  const notes = notesOn(config)
  if (notes.length > 0) logEvent(logger, 'configuration_note', { note: notes.join(' ') })
  const { url } = http
  if (rollouts) {
    opened.defer(() => rollouts.close())
    await rollouts.begin({ proxyUrl: url, adminKeys: config.adminKeys, tlsCa: undefined })
  }
  await store.shared?.tell({ url: config.nodeUrl ?? reachableUrl(url) })
  const running = opened.move()
  return {
    url,
    healthUrl: healthPort?.url,
    lost: store.lost,
    stop: async (graceMs) => {
      // Agents run for minutes, so they are ended and the trainer retries.
      await rollouts?.rollouts.stop(0)
      // Without a database the other nodes cannot be notified, and nothing more is recorded.
      await store.shared?.tell({ isDraining: true }).catch(() => {})
      const drained = await runner.drain(graceMs)
      await running.disposeAsync()
      return { drained }
    },
  }
}

/** Returns the URL at which other machines reach the proxy: if it listens on all addresses, the first external one. */
function reachableUrl(url: string): string {
  const reachable = new URL(url)
  if (reachable.hostname === '0.0.0.0' || reachable.hostname === '[::]') {
    const addresses = Object.values(networkInterfaces()).flatMap((all = []) => all)
    const { address } = addresses.find(({ internal, family }) => !internal && family === 'IPv4') ?? {}
    reachable.hostname = address ?? '127.0.0.1'
  }
  return reachable.href
}

function httpOptions(
  config: ServeConfig,
  parts: ServerParts,
  own: InProcessRollouts | undefined,
  logger: Logger,
): ServerOptions {
  const { metrics, tracing, store, relay, backend, prompts, tokenizer } = parts
  const { sessions, runner, weights, activity, registry, controls, nodes } = parts
  return {
    ...{ sessions, store, runner, backend, logger, weights, activity, registry, controls, nodes },
    host: config.host,
    port: config.port,
    bodyLimitBytes: config.maxBodyBytes,
    limits: { calls: config.agentCallLimit },
    choiceLimit: config.choiceLimit,
    answerKeepAliveMs: config.answerKeepAliveMs || undefined,
    agentFields: config.agentFields,
    agentMedia: config.agentMedia,
    keys: config,
    loopbackOnly: isLoopback(config.host),
    trustedProxies: config.trustedProxies,
    basePath: config.basePath,
    ...getCertificateFiles(config),
    turnMessages: config.turnMessages,
    volatileRules: config.stripVolatile ? undefined : [],
    tracer: tracing,
    facts: () => healthFacts(config, parts),
    inspector: uiRoutes,
    rollouts: createRolloutRoutes(config, own),
    tokenTexts: createTokenTextReader(
      tokenizer && { name: config.tokenizer!, tokenizer },
      loadEmbeddedTokenizer,
      () => ('engines' in backend ? backend.engines.all() : []),
    ),
    metrics: metrics.source({
      backend,
      prompts,
      store,
      rollouts: own?.rollouts,
      ...(config.db !== 'memory' && !isPostgresUrl(config.db) && { databasePath: config.db }),
    }),
    acceptWorker: (socket, greeted) => {
      const accepted = () => {
        metrics.workerConnected()
        greeted()
      }
      if (relay) relay.accept(socket, accepted)
      else rejectWorkers(socket)
    },
    maxWorkerFrameBytes: MAX_FRAME_BYTES,
  }
}

/** Returns the routes of rollouts, which this process runs or forwards. */
function createRolloutRoutes({ rolloutServer, adminKeys }: ServeConfig, own: InProcessRollouts | undefined) {
  if (own) return rolloutRoutes(own)
  return rolloutServer === undefined
    ? undefined
    : forwardRollouts({ serverUrl: rolloutServer, adminKey: adminKeys[0] })
}

/** Returns the part of `/health` for clients that may see all of it. */
function healthFacts(config: ServeConfig, parts: ServerParts) {
  const { store, backend, prompts, markup, drift, sessions, isFallback, database } = parts
  const hasNoEngine = config.mode === 'local' && !backend.status().members.some(({ healthy }) => healthy)
  return {
    version: VERSION,
    db: databaseName(config.db),
    database: database && promisesToWire(database),
    ...((config.runner ?? config.rolloutServer) !== undefined && { rollouts: true }),
    nodes: store.shared && nodesToWire(store.shared),
    prompts: prompts.counts(),
    ...markup,
    drift: drift?.meter.state(),
    notes: [
      ...notesOn(config).filter((note) => note !== fallbackNote(config) || isFallback()),
      ...(hasNoEngine ? [NO_ENGINE_NOTE] : []),
      ...(sessions.heldSweep ? [describeHeld(sessions.heldSweep)] : []),
    ],
  }
}

/** Returns the nodes that share the store. */
function nodesToWire({ proxies, self }: NodeCoordination) {
  return proxies.map(({ id, name, url = null, isDraining: draining }) => ({
    name,
    url,
    draining,
    self: id === self?.id,
  }))
}

function promisesToWire({ server, fsync, fullPageWrites, ...commits }: Promises) {
  return {
    server,
    fsync,
    full_page_writes: fullPageWrites,
    synchronous_commit: commits.synchronousCommit,
    synchronous_standby_names: commits.synchronousStandbys,
  }
}

export interface RunningWorker {
  readonly workerId: string
  /** Rejects new requests, waits up to `graceMs` for running ones, then cancels them and disconnects. */
  stop(graceMs: number): Promise<{ drained: boolean }>
}

/**
 * Starts an inference worker: it dials its proxies, reconnects as needed, and reports to them if its engines do not
 * respond.
 * @throws ProxyError `config_invalid`
 */
export function startWorker(config: WorkerConfig, { logger, outside = {} }: ServerHooks): RunningWorker {
  const { maxConcurrency, proxyUrls, workerKeys: apiKeys } = config
  const workerId = config.workerId ?? `${hostname()}-${process.pid}`
  if (namesNoEngine(config)) logEvent(logger, 'configuration_note', { note: fallbackNote() })
  const backend = createLocalBackend({
    clients: openEngines({ ...config, connect: outside.connect }),
    maxConcurrencyPerEngine: maxConcurrency,
    tellsTextIds: true,
    measuresLogprobs: true,
    logger,
  })
  const worker = new InferenceWorkerClient({
    workerId,
    proxyUrls,
    apiKeys,
    ...trustedAuthorities(config.tlsCa),
    backend,
    maxConcurrency,
    logger,
    dial: outside.dial,
    resolve: outside.resolve,
  })
  worker.start()
  return {
    workerId,
    stop: async (graceMs) => {
      const stopped = await worker.stop(AbortSignal.timeout(graceMs))
      await backend.close()
      return stopped
    },
  }
}
