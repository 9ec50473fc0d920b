/**
 * The composition root, which selects every adapter. {@link startServer} creates the parts of a server in the order of
 * their dependencies: a part receives only parts that precede it. A disposable stack owns the parts and closes them in
 * the reverse order.
 */
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { AsyncDisposableStack } from '@whatwg-node/disposablestack'
import { openBackend } from './backend.ts'
import { ProxyError } from './base/errors.ts'
import { logEvent } from './base/log-events.ts'
import type { Logger } from './base/logger.ts'
import { VERSION } from './base/version.ts'
import { hasRollouts, products, requireProduct, type ServerRolloutsConfig } from './included-products.ts'
import { openEngines } from './open-engines.ts'
import { type CaptureOptions, omitEmpty, parseCaptureOptions } from './protocol/token-data/kinds.ts'
import { MAX_FRAME_BYTES } from './protocol/worker/protocol.ts'
import {
  getFallbackNote,
  isLoopback,
  listNotes,
  NO_ENGINE_NOTE,
  namesNoEngine,
} from './proxy/config/notes.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import type { WorkerConfig } from './proxy/config/options/worker.ts'
import { readTrustedAuthorities } from './proxy/config/trusted-authorities.ts'
import { createEngineClient } from './proxy/engines/clients/create-clients.ts'
import { createTokenTextReader } from './proxy/engines/clients/token-text-reader.ts'
import type { SocketConnector } from './proxy/engines/clients/wire/connection.ts'
import { createLocalBackend } from './proxy/engines/dispatch/local-backend.ts'
import { ClusterControls } from './proxy/http/nodes/cluster-controls.ts'
import { createNodes } from './proxy/http/nodes/nodes.ts'
import { RolloutOwners } from './proxy/http/nodes/rollout-owners.ts'
import { Controls } from './proxy/http/operator/controls.ts'
import { type HealthPort, openHealthPort } from './proxy/http/operator/health/health-port.ts'
import { getHealth } from './proxy/http/operator/health/health-route.ts'
import { type HttpServer, listen, type ServerOptions } from './proxy/http/server.ts'
import { getReachableUrl } from './proxy/http/transport/base-url.ts'
import { ProxyMetrics } from './proxy/metrics/proxy-metrics.ts'
import { ChatPrompts } from './proxy/session/prompts/chat-prompts.ts'
import { TokenPrompts } from './proxy/session/prompts/token-prompts.ts'
import { Activity } from './proxy/session/state/activity.ts'
import { parseLimits } from './proxy/session/state/limits.ts'
import { Sessions } from './proxy/session/state/sessions.ts'
import { describeBacklog, type SweepBacklog } from './proxy/session/state/sweeper.ts'
import { createRequestLogger } from './proxy/session/turn/request-log.ts'
import { TurnRunner } from './proxy/session/turn/run-turn.ts'
import { WeightAnnouncement } from './proxy/session/turn/weight-announcement.ts'
import type { ThreadSpawner } from './proxy/store/common/store-thread.ts'
import { isPostgresUrl, toDatabaseName } from './proxy/store/port/database-name.ts'
import type { NodeCoordination } from './proxy/store/port/node-coordination.ts'
import type { TurnRecord, TurnStore } from './proxy/store/port/turn-store.ts'
import { openSqliteStore } from './proxy/store/sqlite/open.ts'
import { openTemporaryStore } from './proxy/store/sqlite/temporary-store.ts'
import type { openTokenModel } from './proxy/tokens/model/token-model.ts'
import { openTracing } from './proxy/tracing/open.ts'
import { type DriftEngine, DriftMeter } from './proxy/verify/drift-meter.ts'
import { selectIdleEngine } from './proxy/verify/idle-engine.ts'
import {
  checkTokenEngines,
  findServedLength,
  getExpectedTokenizer,
  openModel,
  reportMarkup,
} from './token-mode.ts'
import { InferenceWorkerClient } from './worker/inference-worker-client.ts'
import type { HostResolver } from './worker/proxy-addresses.ts'
import type { SocketDialer } from './worker/proxy-connection.ts'

/** The system dependencies of a process, which tests replace. Default of each: the operating system's. */
export interface Platform {
  /** Listens for agents, trainers and workers. */
  listen?: (options: ServerOptions) => Promise<HttpServer>
  /** Opens sockets to engines. */
  connect?: SocketConnector | undefined
  /** Opens WebSockets to proxies. */
  dial?: SocketDialer
  /** Resolves the addresses of proxies. */
  resolve?: HostResolver
  /** Starts the threads of the store. */
  spawn?: ThreadSpawner
  /** Opens the model of token mode, with the threads that render and tokenize. */
  openModel?: typeof openTokenModel
}

interface StartOptions {
  logger: Logger
  platform?: Platform | undefined
}

export interface RunningServer {
  /** The URL at which the server listens, with the actual port: `http://127.0.0.1:8080`. */
  readonly url: string
  /** The URL of `--health-port`. */
  readonly healthUrl?: string | undefined
  /** The URL of the inspector; undefined: the program was built without it. */
  readonly inspectorUrl?: string | undefined
  /** Resolves with the cause if the store cannot commit until the process is restarted; otherwise stays pending. */
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
export async function startServer(
  config: ServeConfig & ServerRolloutsConfig,
  { logger, platform = {} }: StartOptions,
): Promise<RunningServer> {
  const { mode, host, basePath, adminKeys } = config
  const usesRollouts = hasRollouts(config)
  if (usesRollouts) requireProduct('rollouts').checkRollouts(config)
  await using stack = new AsyncDisposableStack()

  // 1. Metrics and tracing, which observe the other parts and close last.
  const metrics = stack.use(new ProxyMetrics())
  const tracing = await openTracing(process.env, logger)
  stack.defer(() => tracing?.close())

  // 2. The store. `shared` is set if other nodes may use its database.
  const countedStore = metrics.watchStore(await openStore(config, { metrics, logger, platform }))
  const store = tracing?.watchStore(countedStore) ?? countedStore
  stack.defer(() => store.close())
  const { shared } = store
  const database = isPostgresUrl(config.db)
    ? await requireProduct('postgres').openPostgresForInspection(config.db, config.durability)
    : undefined

  // 3. The model of token mode, and the token ids by which engines with the same tokenizer are recognized.
  const model = await openModel(config, logger, platform.openModel)
  stack.defer(() => model?.close())
  const tokenizer = model && (await getExpectedTokenizer(config.tokenizer!, model))

  // 4. The backend: engines in local mode, connected workers in relay mode.
  const backendParts = { metrics, logger, connect: platform.connect, tokenizer }
  const { backend, registry, engines, acceptWorker } = await openBackend(config, backendParts)
  stack.defer(() => backend.close())
  stack.defer(metrics.logThroughput(logger, backend))
  const isFallback = () => engines().some((engine) => engine.isFallback)

  // 5. Prompts, which the engines render in chat mode and the proxy in token mode.
  if (model) checkTokenEngines(backend.getStatus().members)
  const markup = model && reportMarkup(model, logger)
  const prompts = model
    ? new TokenPrompts(
        { ...model, servedLength: await findServedLength(model, backend, logger) },
        store,
        config,
      )
    : new ChatPrompts((...question) => backend.countTokens(...question), store)

  // 6. Sessions. This entry of the stack closes them if a later step fails; step 11 adds one that closes them first.
  const activity = new Activity()
  const sessionHooks = {
    onEnded: (sessionId: string) => backend.releaseSession(sessionId),
    onSweepFailed: (err: ProxyError) => logEvent(logger, 'sweep_failed', { err }),
    onSweepDeferred: (backlog: SweepBacklog) =>
      logEvent(logger, 'sweep_deferred', { note: describeBacklog(backlog) }),
  }
  const sessions = new Sessions(store, sessionHooks, {
    activity,
    strict: config.strictSessions,
    defaultTtlMs: config.sessionTtlMs || null,
    limits: parseLimits(config.sessionLimits ?? []),
    memoryBytes: config.sessionMemoryBytes,
    metadata: () => (isFallback() ? { llm_proxy_note: getFallbackNote(config) } : {}),
  })
  stack.defer(() => sessions.close())

  // 7. The drift meter, with its own engine or those of the backend.
  const findIdleEngine = (turn: TurnRecord) => selectIdleEngine(engines(), backend.getStatus(), turn)
  const drift =
    config.verifyShare > 0
      ? openDriftMeter(config, { store, logger, metrics, platform, findIdleEngine })
      : undefined
  stack.defer(() => drift?.close())

  // 8. The turns of agents' requests.
  const weights = new WeightAnnouncement()
  const runner = new TurnRunner({
    ...{ sessions, prompts, store, logger, weights, activity },
    backend: metrics.watchBackend(backend),
    record: parseRecordOption(config),
    logprobsMode: config.logprobsMode,
    retryGraceMs: config.retryGraceMs,
    editedCalls: config.editedCalls,
    continueResponses: config.continueResponses,
    model: config.model,
    onTrainable: drift && ((turn) => drift.meter.offer(turn)),
  })

  // 9. The other nodes, and the admin controls, which apply to this node or to all nodes of the database.
  const httpOptions = toHttpOptions(config)
  const nodes = shared && createNodes(shared, httpOptions)
  stack.defer(() => nodes?.forwarder.close())
  const controlled = { backend, weights, activity, logger }
  const cluster = nodes && new ClusterControls({ ...controlled, ...nodes, registry })

  // 10. Rollouts, which this process runs or forwards.
  const owners = nodes && new RolloutOwners(nodes)
  const rollouts = usesRollouts ? requireProduct('rollouts').openRollouts(config, logger, owners) : undefined

  // 11. The HTTP server for agents, trainers, operators and workers, and the separate port for probes, which closes
  // last, so that it reports the drain to its end.
  let healthPort: HealthPort | undefined
  stack.defer(() => healthPort?.close())
  const http = await (platform.listen ?? listen)({
    ...httpOptions,
    ...{ sessions, store, runner, backend, logger, weights, activity, nodes, tracer: tracing, acceptWorker },
    logRequest: createRequestLogger(logger, config.logRequests),
    registry: mode === 'local' && cluster ? cluster : registry,
    controls: cluster ?? new Controls(controlled),
    inspector: products.inspector?.uiRoutes,
    rollouts: rollouts?.routes,
    tokenTexts: createTokenTextReader(
      model && { name: config.tokenizer!, tokenizer: model.tokenizer },
      products.embedded?.loadEmbeddedTokenizer,
      engines,
    ),
    metrics: metrics.createSource({
      ...{ backend, prompts, store, rollouts: rollouts?.own?.rollouts },
      ...(config.db !== 'memory' && !isPostgresUrl(config.db) && { databasePath: config.db }),
    }),
    getHealthFields: () => ({
      version: VERSION,
      db: toDatabaseName(config.db),
      database,
      ...(usesRollouts && { rollouts: true }),
      prompts: prompts.getCounts(),
      ...markup,
      drift: drift?.meter.getState(),
      notes: [
        ...listNotes(config).filter((note) => note !== getFallbackNote(config) || isFallback()),
        ...(mode === 'local' && !engines().some(({ watch }) => watch.healthy) ? [NO_ENGINE_NOTE] : []),
        ...(sessions.deferredSweep ? [describeBacklog(sessions.deferredSweep)] : []),
      ],
    }),
  })
  const drain = { endsAtMs: 0, areResponsesComplete: true }
  stack.defer(async () => {
    drain.areResponsesComplete = await http.close(drain.endsAtMs - performance.now())
  })
  const health = async () => {
    const { code, health } = await getHealth({ backend, runner, store })
    return { code, body: JSON.stringify(health) }
  }
  const { healthPort: port } = config
  if (port !== undefined) healthPort = await openHealthPort({ host, port, basePath, getHealth: health })
  // Closing the sessions first ends their long polls; otherwise closing the HTTP server would wait for these.
  stack.defer(() => sessions.close())

  // 12. Rollouts and other nodes, which need the server's address. Notes are logged only after the server has started,
  // so that they do not hide the reason why a start failed.
  const notes = listNotes(config)
  if (notes.length > 0) logEvent(logger, 'configuration_note', { note: notes.join(' ') })
  stack.defer(() => rollouts?.own?.close())
  await rollouts?.own?.begin({ proxyUrl: http.url, adminKeys, tlsCa: undefined })
  // A pause, the weight version and engines that apply already.
  await shared?.waitForControls()
  await shared?.publish({ url: config.nodeUrl ?? getReachableUrl(http.url) })
  const running = stack.move()
  return {
    url: http.url,
    healthUrl: healthPort?.url,
    inspectorUrl: products.inspector && `${http.url}/ui`,
    lost: store.lost,
    stop: async (graceMs) => {
      drain.endsAtMs = performance.now() + graceMs
      // Rollouts run for minutes, so they are cancelled instead of awaited; the trainer retries them.
      await rollouts?.own?.rollouts.stop(0)
      // A failure is ignored: if the database is unavailable, the lease of this node expires, and the others notice.
      await shared?.publish({ isDraining: true }).catch(() => {})
      const [areTurnsComplete] = await Promise.all([
        runner.drain(graceMs),
        shared && waitForRouting(shared, graceMs),
      ])
      // Responses that other nodes serve, and downloads, have the rest of the grace period.
      await running.disposeAsync()
      return { drained: areTurnsComplete && drain.areResponsesComplete }
    },
  }
}

/**
 * The time for which a draining node listens. Kubernetes and load balancers send requests for some seconds after the
 * signal, until their probes have found the node draining or its removal has reached every machine.
 */
const ROUTING_MS = 5_000

/**
 * Waits, if there are other nodes to which this one forwards new requests, until load balancers no longer select it.
 * @param graceMs the maximum
 */
async function waitForRouting({ proxies, self }: NodeCoordination, graceMs: number): Promise<void> {
  const hasOthers = proxies.some(
    ({ id, url, isDraining }) => id !== self?.id && url !== undefined && !isDraining,
  )
  if (hasOthers) await sleep(Math.min(ROUTING_MS, graceMs))
}

/** The parts that observe the others, and the system dependencies. */
interface Observers {
  metrics: ProxyMetrics
  logger: Logger
  platform: Platform
}

async function openStore(
  { db, durability, searchIndex }: ServeConfig,
  { metrics, logger, platform: { spawn } }: Observers,
): Promise<TurnStore> {
  const onCommit = (operations: number, tookMs: number) => metrics.countCommit(operations, tookMs)
  const options = { onCommit, searchIndex, logger, spawn }
  if (db === 'memory') return openTemporaryStore(options)
  if (isPostgresUrl(db))
    return requireProduct('postgres').openPostgresStore({ url: db, durability, ...options })
  return openSqliteStore({ path: db, durability, ...options })
}

interface DriftMeterParts extends Observers {
  store: TurnStore
  findIdleEngine(turn: TurnRecord): DriftEngine | 'busy' | undefined
}

/**
 * Opens the drift meter.
 * @throws ProxyError `config_invalid` for an invalid `--verify-engine-url`
 */
function openDriftMeter(
  config: ServeConfig,
  { metrics, logger, platform, store, findIdleEngine }: DriftMeterParts,
) {
  const { verifyShare: share, verifyEngineUrl: url } = config
  const own =
    url === undefined ? undefined : createEngineClient({ ...config, connect: platform.connect }, url)
  const meter = new DriftMeter({
    share,
    store,
    logger,
    onVerdict: (verdict, result) => metrics.countVerification(verdict, result?.comparison?.mean_difference),
    onControl: (isCaught) => metrics.countControl(isCaught),
    findEngine: async (turn, signal) =>
      own ? { client: own, health: await own.checkHealth(signal) } : findIdleEngine(turn),
  })
  const close = async () => {
    await meter.close()
    await own?.close()
  }
  return { meter, close }
}

/** Parses `--record`. @throws ProxyError `config_invalid` */
function parseRecordOption({ record }: ServeConfig): CaptureOptions | undefined {
  try {
    return omitEmpty(parseCaptureOptions(record))
  } catch (error) {
    throw new ProxyError('config_invalid', `--record: ${(error as Error).message}`, { cause: error })
  }
}

/** Returns the options of the HTTP server that follow from the configuration alone. */
function toHttpOptions(config: ServeConfig) {
  const { tlsCert: certPath, tlsKey: keyPath } = config
  return {
    host: config.host,
    port: config.port,
    bodyLimitBytes: config.maxBodyBytes,
    limits: { completions: config.agentCallLimit },
    choiceLimit: config.choiceLimit,
    answerKeepAliveMs: config.answerKeepAliveMs || undefined,
    agentFields: config.agentFields,
    agentMedia: config.agentMedia,
    keys: config,
    loopbackOnly: isLoopback(config.host),
    trustedProxies: config.trustedProxies,
    basePath: config.basePath,
    ...(certPath !== undefined && keyPath !== undefined && { certificateFiles: { certPath, keyPath } }),
    turnMessages: config.turnMessages,
    volatileRules: config.stripVolatile ? undefined : [],
    maxWorkerFrameBytes: MAX_FRAME_BYTES,
  }
}

export interface RunningWorker {
  readonly workerId: string
  /** Rejects new requests, waits up to `graceMs` for running ones, then cancels them and disconnects. */
  stop(graceMs: number): Promise<{ drained: boolean }>
}

/**
 * Starts an inference worker. It connects to its proxies, reconnects as needed, and reports engines that do not
 * respond.
 * @throws ProxyError `config_invalid`
 */
export function startWorker(config: WorkerConfig, { logger, platform = {} }: StartOptions): RunningWorker {
  const { maxConcurrency, proxyUrls, workerKeys: apiKeys } = config
  const workerId = config.workerId ?? `${hostname()}-${process.pid}`
  if (namesNoEngine(config)) logEvent(logger, 'configuration_note', { note: getFallbackNote() })
  const clients = openEngines({ ...config, connect: platform.connect })
  const backend = createLocalBackend({
    clients,
    maxConcurrencyPerEngine: maxConcurrency,
    reportsTextIds: true,
    measuresLogprobs: true,
    logger,
  })
  const worker = new InferenceWorkerClient({
    workerId,
    proxyUrls,
    apiKeys,
    ...readTrustedAuthorities(config.tlsCa),
    backend,
    maxConcurrency: maxConcurrency * clients.length,
    logger,
    dial: platform.dial,
    resolve: platform.resolve,
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
