/**
 * The inference worker: dials one or several proxies and serves their requests with its backend. A proxy can thus use
 * engines on machines that accept no incoming connections.
 */
import { EventEmitter } from 'node:events'
import { type Clock, systemClock } from '../base/clock.ts'
import { logEvent } from '../base/log-events.ts'
import { type Logger, withContext } from '../base/logger.ts'
import { toShownUrl } from '../base/shown-url.ts'
import {
  CAPABILITIES,
  CLOSE,
  MAX_WARNING_LENGTH,
  type WorkerHelloV2,
  type WorkerStatus,
} from '../protocol/worker/protocol.ts'
import { Dispatcher } from '../proxy/engines/dispatch/dispatcher.ts'
import type { Backend, BackendMember } from '../proxy/engines/port/backend.ts'
import type { EngineModel } from '../proxy/engines/port/engine-client.ts'
import { TOKENIZER_TEXT } from '../proxy/engines/port/expected-tokenizer.ts'
import { type HostResolver, LOOKUP_INTERVAL_MS, resolveBySystem } from './proxy-addresses.ts'
import { dialOut, type SocketDialer } from './proxy-connection.ts'
import { ProxyLink } from './proxy-link.ts'
import { ProxyLinks, type ProxyTarget } from './proxy-links.ts'
import { getWorkerSocketUrl } from './proxy-url.ts'
import { WorkerCache } from './worker-cache.ts'

/** The options of an {@link InferenceWorkerClient}. */
interface InferenceWorkerClientOptions {
  /**
   * Base URLs of proxies in relay mode: `http(s)://` or `ws(s)://`, with or without `/ws/worker`. With the prefix
   * `dns+`, each address of the URL's host is a separate proxy.
   */
  proxyUrls: readonly string[]
  /**
   * The worker's id, which must be unique among the workers of each proxy and should be the same after each restart.
   */
  workerId: string
  /** Serves the requests. The caller closes it after {@link InferenceWorkerClient.stop}. */
  backend: Backend
  /** The maximum number of concurrent requests of all proxies and at all engines together. */
  maxConcurrency: number
  logger: Logger
  /**
   * Worker keys, if proxies require one. After a rejected key the next one is used, because a rotation may be in
   * progress.
   */
  apiKeys?: readonly string[]
  /** Certificate authorities (PEM) for `wss:` proxies. Default: those of Node.js. */
  ca?: string[]
  clock?: Clock
  /** Opens the WebSockets to proxies. Default: those of the package `ws`. */
  dial?: SocketDialer | undefined
  /** Resolves the host of a `dns+` URL. Default: the system's resolver. */
  resolve?: HostResolver | undefined
  /** The interval at which `dns+` URLs are resolved. */
  lookupIntervalMs?: number
  /**
   * Returns a random number from 0 to 1, as `Math.random` does; it determines the delays between connection attempts.
   */
  random?: () => number
}

/** The events that an {@link InferenceWorkerClient} emits. */
interface InferenceWorkerEvents {
  /** A proxy has accepted the worker; emitted for each connection. */
  connected: [event: { proxyUrl: string; address?: string | undefined }]
  disconnected: [event: { proxyUrl: string; address?: string | undefined; code: number; reason: string }]
  /** All connections are closed, after {@link InferenceWorkerClient.stop}. */
  stopped: []
}

/** Messages for close codes that reveal a configuration error, because of which the worker serves nothing. */
const CONFIGURATION_ERRORS: Readonly<Record<number, string>> = {
  [CLOSE.notRelayMode]:
    'the proxy is not in relay mode, so that no request will arrive: start it with --mode relay, or connect to another one',
}

/** Interval at which the worker checks for status changes to report. */
const STATUS_INTERVAL_MS = 1_000

/** A worker and its links to all proxies. */
export class InferenceWorkerClient extends EventEmitter<InferenceWorkerEvents> {
  readonly #options: InferenceWorkerClientOptions
  readonly #clock: Clock
  readonly #slots: Dispatcher
  readonly #memory: WorkerCache
  readonly #links: ProxyLinks
  /**
   * Identifies this run of the worker. Proxies retain the requests of a disconnected worker until it reconnects with
   * the same epoch.
   */
  readonly #epoch = Date.now()
  #models: EngineModel[] = []
  #draining = false
  #hasStopped = false
  #lastStatus = ''
  #running: Promise<unknown> | undefined
  #stopped: Promise<{ drained: boolean }> | undefined
  #cancelStatus: (() => void) | undefined
  #keepAlive: NodeJS.Timeout | undefined

  constructor(options: InferenceWorkerClientOptions) {
    super()
    const { maxConcurrency, proxyUrls, logger, clock = systemClock } = options
    const { resolve = resolveBySystem, lookupIntervalMs = LOOKUP_INTERVAL_MS } = options
    this.#options = options
    this.#clock = clock
    this.#slots = createSlots(maxConcurrency, clock)
    this.#memory = new WorkerCache(() => clock.nowMs())
    this.#links = new ProxyLinks({
      ...{ proxyUrls, resolve, lookupIntervalMs, clock, logger },
      createLink: (proxy, lost) => this.#linkTo(proxy, lost),
    })
  }

  /** Whether the worker is connected to at least one proxy that has accepted it. */
  get isConnected(): boolean {
    return [...this.#links].some((link) => link.isConnected)
  }

  /** Dials every proxy and maintains the connections, for which it emits events. Must be called once. */
  start(): void {
    // This timer keeps the process alive between two connection attempts.
    this.#keepAlive = setInterval(() => {}, 2 ** 30)
    this.#running = this.#watchStatus().then(() => this.#links.start())
  }

  /**
   * Drains the worker: rejects new requests, completes running ones and disconnects.
   * @param now aborts at the deadline, when running requests are cancelled
   * @returns whether it ended before the deadline and every response was delivered or cancelled by its proxy
   */
  stop(now?: AbortSignal): Promise<{ drained: boolean }> {
    this.#stopped ??= this.#stop(now)
    return this.#stopped
  }

  async #stop(now: AbortSignal | undefined): Promise<{ drained: boolean }> {
    this.#draining = true
    const drained = await Promise.race([this.#links.drain(), waitForAbort(now).then(() => false)])
    this.#hasStopped = true
    this.#cancelStatus?.()
    await this.#running
    await this.#links.stop()
    this.#slots.close()
    clearInterval(this.#keepAlive)
    this.emit('stopped')
    return { drained }
  }

  #linkTo({ url: proxyUrl, address }: ProxyTarget, lost: () => void): ProxyLink {
    const { backend, logger, workerId, maxConcurrency, apiKeys = [], ca, dial = dialOut } = this.#options
    const { random = Math.random } = this.#options
    const context = { worker_id: workerId, proxy: toShownUrl(proxyUrl), address: address || undefined }
    const log = withContext(logger, context)
    return new ProxyLink({
      url: getWorkerSocketUrl(proxyUrl),
      address,
      apiKeys,
      ca,
      workerId,
      epoch: this.#epoch,
      maxConcurrency,
      backend,
      slots: this.#slots,
      memory: this.#memory,
      clock: this.#clock,
      dial,
      random,
      logger: log,
      getStatus: () => this.#status(),
      onConnected: () => {
        logEvent(log, 'proxy_connected', {})
        this.emit('connected', { proxyUrl, address })
      },
      onDisconnected: ({ code, reason, keyRejected }) => {
        const mistake = keyRejected ? 'the proxy rejects the worker key' : CONFIGURATION_ERRORS[code]
        const event = mistake === undefined ? 'proxy_disconnected' : 'proxy_rejected_worker'
        logEvent(log, event, {
          close_code: code,
          reason: mistake === undefined ? reason : `${mistake}: ${reason}`,
        })
        this.emit('disconnected', { proxyUrl, address, code, reason })
        lost()
      },
    })
  }

  #status(): WorkerStatus & Pick<WorkerHelloV2, 'capabilities'> {
    const { members } = this.#options.backend.getStatus()
    const { members: slots, waiting } = this.#slots.getStats()
    return {
      type: 'worker_status',
      healthy: members.some((member) => member.healthy),
      ...getUnavailable(members),
      capabilities: listCapabilities(members),
      ...getDistinctTextIds(members),
      ...getWarning(members),
      load: waiting + slots.reduce((sum, slot) => sum + slot.inFlight, 0),
      models: this.#models.map(({ id, maxModelLen }) =>
        maxModelLen === undefined ? { id } : { id, max_model_len: maxModelLen },
      ),
      weight_version: getCommonWeightVersion(members),
      draining: this.#draining,
    }
  }

  /**
   * Sends the status when it has changed, and checks it again periodically. Resolves after the first check, so that the
   * first hello lists the models.
   */
  async #watchStatus(): Promise<void> {
    try {
      this.#models = await this.#options.backend.listModels()
    } catch (error) {
      logEvent(this.#options.logger, 'models_unknown', { err: error })
    }
    if (this.#hasStopped) return
    this.#memory.forgetUnused()
    const status = JSON.stringify(this.#status())
    if (status !== this.#lastStatus) for (const link of this.#links) link.sendStatus()
    this.#lastStatus = status
    this.#cancelStatus = this.#clock.after(STATUS_INTERVAL_MS, () => void this.#watchStatus())
  }
}

/**
 * Creates the dispatcher that limits concurrent requests. It has one member. Its queue is unlimited, because the
 * proxies limit the number of requests that they send.
 */
function createSlots(maxConcurrency: number, clock: Clock): Dispatcher {
  const waitMs = Number.POSITIVE_INFINITY
  const createAbsentError = () => ({ code: 'internal', message: 'the worker has no slots' }) as const
  const slots = new Dispatcher({
    queueLimit: Number.POSITIVE_INFINITY,
    waitMs,
    createAbsentError,
    clock,
  })
  slots.addMember({ id: 'slots', maxConcurrency, healthy: true, draining: false, models: [] })
  return slots
}

/**
 * Returns the weight version of the healthy engines if all have the same one; null otherwise, as during an update, when
 * each turn reports its own.
 */
function getCommonWeightVersion(members: readonly BackendMember[]): string | null {
  const versions = new Set(members.filter((member) => member.healthy).map((member) => member.weightVersion))
  const [version] = versions
  return versions.size === 1 ? (version ?? null) : null
}

/** Returns the worker's capabilities, except those that one of its engines lacks. */
function listCapabilities(members: readonly BackendMember[]): string[] {
  const lacks = new Set<string>()
  if (members.length === 0 || members.some(({ takesTokenIds }) => !takesTokenIds))
    lacks.add(CAPABILITIES.tokenIds)
  if (members.length === 0 || members.some(({ takesImages }) => !takesImages)) lacks.add(CAPABILITIES.images)
  return Object.values(CAPABILITIES).filter((name) => !lacks.has(name))
}

/** Returns the token ids of the reference text for the healthy engines, one entry per distinct value. */
function getDistinctTextIds(members: readonly BackendMember[]): Pick<WorkerStatus, 'text_ids'> {
  const byIds = new Map<string, NonNullable<WorkerStatus['text_ids']>['engines'][number]>()
  for (const { healthy, name, models, textIds, chatIds = {} } of members) {
    if (!healthy || !textIds) continue
    const chat_ids = Object.fromEntries(Object.entries(chatIds).map(([chat, ids]) => [chat, [...ids]]))
    byIds.set(JSON.stringify([textIds, chatIds]), { name, models, ids: [...textIds], chat_ids })
  }
  return byIds.size === 0 ? {} : { text_ids: { text: TOKENIZER_TEXT, engines: [...byIds.values()] } }
}

/** Returns the warnings of all engines as one text. */
function getWarning(members: readonly BackendMember[]): Pick<WorkerStatus, 'warning'> {
  const warnings = members.flatMap(({ name, warning }) => (warning ? [`${name}: ${warning}`] : []))
  return warnings.length === 0 ? {} : { warning: warnings.join('; ').slice(0, MAX_WARNING_LENGTH) }
}

/** Returns the reason why no engine accepts new requests although at least one is healthy. */
function getUnavailable(members: readonly BackendMember[]): Pick<WorkerStatus, 'unavailable'> {
  const healthy = members.filter((member) => member.healthy)
  const [first] = healthy
  return first?.unavailable && healthy.every((member) => member.unavailable)
    ? { unavailable: first.unavailable }
    : {}
}

function waitForAbort(signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) resolve()
    else signal?.addEventListener('abort', () => resolve(), { once: true })
  })
}
