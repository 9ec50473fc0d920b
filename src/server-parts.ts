/** Opens the parts of a server, each from its options. */
import { readFileSync } from 'node:fs'
import { ProxyError } from './base/errors.ts'
import { logEvent } from './base/log-events.ts'
import type { Logger } from './base/logger.ts'
import { openEngines } from './embedded/open-engines.ts'
import { expectedTokenizer, openConfiguredModel, openPrompts } from './open-prompts.ts'
import { type CaptureOptions, parseCaptureOptions, undefinedIfEmpty } from './protocol/token-data/kinds.ts'
import { fallbackNote, fallsBack, isOpenDoor } from './proxy/config/notes.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import { checkEngines, openServer } from './proxy/engines/clients/open-servers.ts'
import type { Connect } from './proxy/engines/clients/wire/connection.ts'
import { EngineRegistry } from './proxy/engines/dispatch/engine-registry.ts'
import { createLocalBackend, type LocalBackend } from './proxy/engines/dispatch/local-backend.ts'
import type { Backend } from './proxy/engines/port/backend.ts'
import { createTokenizerQuestion, type ExpectedTokenizer } from './proxy/engines/port/expected-tokenizer.ts'
import type { Registry } from './proxy/engines/port/registry.ts'
import { createNodes } from './proxy/http/nodes/nodes.ts'
import { ClusterControls, Controls } from './proxy/http/operator/controls.ts'
import type { HttpServer, ServerOptions } from './proxy/http/server.ts'
import { Metrics } from './proxy/metrics/metrics.ts'
import { RelayBackend } from './proxy/relay/relay-backend.ts'
import { Activity } from './proxy/session/state/activity.ts'
import { parseLimits } from './proxy/session/state/limits.ts'
import { Sessions } from './proxy/session/state/sessions.ts'
import { describeHeld, type SweepBacklog } from './proxy/session/state/sweeper.ts'
import { TurnRunner } from './proxy/session/turn/run-turn.ts'
import { WeightAnnouncement } from './proxy/session/turn/weight-announcement.ts'
import type { TurnStore } from './proxy/store/port/turn-store.ts'
import { isPostgresUrl, lookAtPostgres, openPostgresStore } from './proxy/store/postgres/open.ts'
import type { SpawnThread } from './proxy/store/record/store-thread.ts'
import { openSqliteStore } from './proxy/store/sqlite/open.ts'
import { openPassingStore } from './proxy/store/sqlite/passing.ts'
import type { openTokenModel } from './proxy/tokens/model/token-model.ts'
import { openTracing } from './proxy/tracing/open.ts'
import { DriftMeter } from './proxy/verify/drift-meter.ts'
import { idleEngine } from './proxy/verify/idle-engine.ts'
import type { Resolve } from './worker/proxy-addresses.ts'
import type { Dial } from './worker/proxy-connection.ts'

/** System dependencies of a process. Default of each: the operating system's. */
export interface Platform {
  /** Listens for agents, trainers and workers. */
  listen?: (options: ServerOptions) => Promise<HttpServer>
  /** Opens sockets to engines. */
  connect?: Connect | undefined
  /** Opens WebSockets to proxies. */
  dial?: Dial
  /** Resolves the addresses of proxies. */
  resolve?: Resolve
  /** Starts the threads of the store. */
  spawn?: SpawnThread
  /** Opens the model of token mode, with the threads that render and tokenize. */
  openModel?: typeof openTokenModel
}

export interface ServerHooks {
  logger: Logger
  outside?: Platform | undefined
}

/** The parts that serve requests, before the server listens. */
export type ServerParts = Awaited<ReturnType<typeof openParts>>

/**
 * Opens the database and connects to the engines. Resources to close are deferred to `opened`.
 * @throws ProxyError `start_failed`, `store_failed` or `config_invalid`
 */
export async function openParts(
  config: ServeConfig,
  { logger, outside = {} }: ServerHooks,
  opened: AsyncDisposableStack,
) {
  const engineConfig = { ...config, connect: outside.connect }
  const metrics = opened.use(new Metrics())
  const tracing = await openTracing(process.env, logger)
  if (tracing) opened.defer(() => tracing.close())
  const ownStore = metrics.watchStore(await openStore(config, { metrics, logger }, outside))
  const store = tracing?.watchStore(ownStore) ?? ownStore
  opened.defer(() => store.close())
  const database = isPostgresUrl(config.db) ? await lookAtPostgres(config.db, config.durability) : undefined
  const model = await openConfiguredModel(config, { opened, logger, openModel: outside.openModel })
  const expected = model && (await expectedTokenizer(config, model))
  const relay = config.mode === 'relay' ? openRelayBackend(config, logger, metrics, expected) : undefined
  const backend = relay ?? (await openLocalBackend(engineConfig, logger, metrics, expected))
  opened.defer(() => backend.close())
  opened.defer(metrics.logThroughput(logger, backend))
  const registry = 'engines' in backend ? engineRegistry(engineConfig, backend, logger) : backend
  const isFallback = () => 'engines' in backend && backend.engines.all().some(({ standIn }) => standIn)
  const activity = new Activity()
  const { prompts, tokenizer, markup } = await openPrompts(model, backend, store, logger)
  const sessions = openSessions(config, store, { backend, activity, logger, isFallback })
  const weights = new WeightAnnouncement()
  const drift =
    config.verifyShare > 0 ? openDriftMeter(config, backend, store, { logger, metrics }) : undefined
  const runner = new TurnRunner({
    sessions,
    backend: metrics.watchBackend(backend),
    prompts,
    store,
    logger,
    weights,
    record: getRequestedDetails(config),
    logprobsMode: config.logprobsMode,
    activity,
    retryGraceMs: config.retryGraceMs,
    editedCalls: config.editedCalls,
    model: config.model,
    onTrainable: drift && ((turn) => drift.meter.offer(turn)),
  })
  const sharing = shareControls(config, { store, backend, registry, weights, activity, logger }, opened)
  return {
    ...{ metrics, tracing, store, database, relay, backend, registry, isFallback, activity },
    ...{ prompts, tokenizer, markup, sessions, weights, drift, runner, ...sharing },
  }
}

async function openStore(
  { db, durability, searchIndex }: ServeConfig,
  { metrics, logger }: { metrics: Metrics; logger: Logger },
  { spawn }: Platform,
): Promise<TurnStore> {
  const hooks = {
    onCommit: (...commit: [number, number]) => metrics.committed(...commit),
    searchIndex,
    logger,
    spawn,
  }
  if (db === 'memory') return openPassingStore(hooks)
  if (isPostgresUrl(db)) return openPostgresStore({ url: db, durability, ...hooks })
  return openSqliteStore({ path: db, durability, ...hooks })
}

interface SharedParts {
  store: TurnStore
  backend: Backend
  registry: Registry
  weights: WeightAnnouncement
  activity: Activity
  logger: Logger
}

/** Opens the settings of admins, and the other nodes if the database has several. */
function shareControls(
  { mode, tlsCert, basePath }: ServeConfig,
  { store: { shared }, registry, ...parts }: SharedParts,
  opened: AsyncDisposableStack,
) {
  if (shared === undefined) return { controls: new Controls(parts), nodes: undefined }
  const nodes = createNodes(shared, { basePath, authority: tlsCert && readFileSync(tlsCert, 'utf8') })
  opened.defer(() => nodes.forwarder.close())
  const controls = new ClusterControls({ shared, registry, identity: nodes.identity, ...parts })
  return { controls, nodes, ...(mode === 'local' && { registry: controls }) }
}

interface SessionParts {
  backend: Backend
  activity: Activity
  logger: Logger
  /** Whether the embedded engine serves because no other one is configured. */
  isFallback(): boolean
}

export function getCertificateFiles({ tlsCert: certPath, tlsKey: keyPath }: ServeConfig) {
  return certPath !== undefined && keyPath !== undefined ? { certificateFiles: { certPath, keyPath } } : {}
}

/** Parses `--record`. @throws ProxyError `config_invalid` */
function getRequestedDetails({ record }: ServeConfig): CaptureOptions | undefined {
  try {
    return undefinedIfEmpty(parseCaptureOptions(record))
  } catch (error) {
    throw new ProxyError('config_invalid', `--record: ${(error as Error).message}`, { cause: error })
  }
}

function openSessions(
  config: ServeConfig,
  store: TurnStore,
  { backend, activity, logger, isFallback }: SessionParts,
): Sessions {
  const hooks = {
    onEnded: (sessionId: string) => backend.releaseSession(sessionId),
    onSweepFailed: (error: ProxyError) => logEvent(logger, 'sweep_failed', { err: error }),
    onSweepHeld: (held: SweepBacklog) => logEvent(logger, 'sweep_deferred', { note: describeHeld(held) }),
  }
  return new Sessions(store, hooks, {
    activity,
    strict: config.strictSessions,
    defaultTtlMs: config.sessionTtlMs || null,
    limits: parseLimits(config.sessionLimits ?? []),
    memoryBytes: config.sessionMemoryBytes,
    metadata: () => (isFallback() ? { llm_proxy_note: fallbackNote(config) } : {}),
  })
}

/** Opens the drift meter, which uses its own engine, or an idle one. */
function openDriftMeter(
  config: ServeConfig,
  backend: Backend | LocalBackend,
  store: TurnStore,
  { logger, metrics }: { logger: Logger; metrics: Metrics },
) {
  const { verifyShare: share, verifyEngineUrl: url } = config
  const own = url === undefined ? undefined : openServer(config, url)
  const meter = new DriftMeter({
    share,
    store,
    logger,
    onVerdict: (verdict, result) => metrics.verified(verdict, result?.comparison?.mean_difference),
    onControl: (isCaught) => metrics.controlTried(isCaught),
    engineFor: async (turn, signal) => {
      if (own) return { client: own, health: await own.checkHealth(signal) }
      return 'engines' in backend ? idleEngine(backend, turn) : undefined
    },
  })
  const close = async () => {
    await meter.close()
    await own?.close()
  }
  return { meter, close }
}

function openRelayBackend(
  config: ServeConfig,
  logger: Logger,
  metrics: Metrics,
  tokenizer: ExpectedTokenizer | undefined,
): RelayBackend {
  return new RelayBackend({
    logger,
    tokenizer,
    watch: metrics.dispatch,
    queueLimit: config.queueLimit,
    waitMs: config.queueWaitMs,
    pauseLimitMs: config.pauseLimitMs,
    callTimeoutMs: config.relayTimeoutMs,
    graceMs: config.workerGraceMs,
    heartbeatMs: config.heartbeatIntervalMs,
    v1MaxConcurrency: config.maxConcurrency,
  })
}

/** The options of `serve` with the socket factory, which is not an option. */
type LocalModeConfig = ServeConfig & Pick<Platform, 'connect'>

async function openLocalBackend(
  config: LocalModeConfig,
  logger: Logger,
  metrics: Metrics,
  tokenizer: ExpectedTokenizer | undefined,
): Promise<LocalBackend> {
  const clients = config.awaitEngines ? [] : openEngines(config)
  return createLocalBackend({
    clients,
    known: await checkEngines(clients, tokenizer && createTokenizerQuestion(tokenizer)),
    tokenizer,
    standIns: fallsBack(config),
    measuresLogprobs: true,
    adaptsEfforts: true,
    maxConcurrencyPerEngine: config.maxConcurrency,
    queueLimit: config.queueLimit,
    waitMs: config.queueWaitMs,
    pauseLimitMs: config.pauseLimitMs,
    healthIntervalMs: config.healthIntervalMs,
    logger,
    watch: metrics.dispatch,
  })
}

function engineRegistry(config: LocalModeConfig, backend: LocalBackend, logger: Logger): Registry {
  return new EngineRegistry({
    backend,
    // Without keys, any client may register an engine, which must not receive the key of the others.
    open: (url) => openServer(isOpenDoor(config) ? { ...config, engineApiKey: undefined } : config, url),
    needsTokenIds: config.tokenizer !== undefined,
    logger,
  })
}
