/**
 * The inference worker: dials one or several proxies and serves their calls with a backend of its own, so that a
 * machine that has engines and takes no connections can serve a proxy that has none.
 */
import { EventEmitter } from 'node:events'
import { type Clock, systemClock } from '../base/clock.ts'
import { logEvent } from '../base/log-events.ts'
import { type Logger, withContext } from '../base/logger.ts'
import { CLOSE, MAX_WARNING_LENGTH, type WorkerStatus } from '../protocol/worker/protocol.ts'
import { Dispatcher } from '../proxy/engines/dispatch/dispatcher.ts'
import type { Backend, BackendMember } from '../proxy/engines/port/backend.ts'
import type { ModelInfo } from '../proxy/engines/port/engine-client.ts'
import { TOKENIZER_TEXT } from '../proxy/engines/port/expected-tokenizer.ts'
import { LOOKUP_INTERVAL_MS, type Resolve, resolveBySystem } from './proxy-addresses.ts'
import { type Dial, dialOut } from './proxy-connection.ts'
import { ProxyLink } from './proxy-link.ts'
import { ProxyLinks, type ProxyName } from './proxy-links.ts'
import { shownUrl, workerSocketUrl } from './proxy-url.ts'
import { WorkerCache } from './worker-cache.ts'

interface InferenceWorkerClientOptions {
  /**
   * Base URLs of proxies in relay mode: `http(s)://` or `ws(s)://`, with or without `/ws/worker`. With `dns+` before it, one
   * stands for a proxy at each address of its host.
   */
  proxyUrls: readonly string[]
  /** Unique among the workers of each proxy, and best the same after each restart. */
  workerId: string
  /** Serves the calls; the caller closes it after `stop`. */
  backend: Backend
  /** Calls served at once, for all proxies together. */
  maxConcurrency: number
  logger: Logger
  /** Worker keys, where proxies ask for one. When one is refused the next is tried: a rotation may be under way. */
  apiKeys?: readonly string[]
  /** Authorities, PEM, that the certificates of `wss:` proxies may come from. Default: those of Node.js. */
  ca?: string[]
  clock?: Clock
  /** Opens the WebSockets to proxies. Default: over the network. */
  dial?: Dial | undefined
  /** Looks up the addresses of a `dns+` URL's host. Default: as the system does. */
  resolve?: Resolve | undefined
  /** How often that is done. */
  lookupIntervalMs?: number
  /** As Math.random; draws the waits between attempts to connect. */
  random?: () => number
}

interface InferenceWorkerEvents {
  /** A proxy has taken this worker on, for the first time or again. */
  connected: [event: { proxyUrl: string; address?: string | undefined }]
  disconnected: [event: { proxyUrl: string; address?: string | undefined; code: number; reason: string }]
  /** Everything is delivered and every connection closed. */
  stopped: []
}

/** What somebody has to set right before the worker can be of use, by the code that its connection was closed with. */
const MISTAKES: Readonly<Record<number, string>> = {
  [CLOSE.notRelayMode]:
    'the proxy is not in relay mode, so that no call will ever come: start it with --mode relay, or name another one',
}

/** How often the worker looks whether there is something new to tell its proxies. */
const STATUS_INTERVAL_MS = 1_000

export class InferenceWorkerClient extends EventEmitter<InferenceWorkerEvents> {
  readonly #options: InferenceWorkerClientOptions
  readonly #clock: Clock
  readonly #slots: Dispatcher
  readonly #memory: WorkerCache
  readonly #links: ProxyLinks
  /** One life of this worker: proxies keep calls for it while its connection is away. */
  readonly #epoch = Date.now()
  #models: ModelInfo[] = []
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
      link: (proxy, lost) => this.#linkTo(proxy, lost),
    })
  }

  /** Whether at least one proxy has this worker. */
  get isConnected(): boolean {
    return [...this.#links].some((link) => link.isConnected)
  }

  /** Dials every proxy, and keeps dialling; connections show as events. To be called once. */
  start(): void {
    // Between two attempts nothing else may keep the process alive.
    this.#keepAlive = setInterval(() => {}, 2 ** 30)
    this.#running = this.#watchStatus().then(() => this.#links.start())
  }

  /**
   * Takes nothing new, finishes what it has and leaves.
   * @param now aborts when there is no more time: calls that still run are dropped
   * @returns whether it ended before `now`, and no call was dropped because its proxy was out of reach for too long
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

  #linkTo({ url: proxyUrl, address }: ProxyName, lost: () => void): ProxyLink {
    const { backend, logger, workerId, maxConcurrency, apiKeys = [], ca, dial = dialOut } = this.#options
    const { random = Math.random } = this.#options
    const context = { worker_id: workerId, proxy: shownUrl(proxyUrl), address: address || undefined }
    const log = withContext(logger, context)
    return new ProxyLink({
      url: workerSocketUrl(proxyUrl),
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
      logger,
      status: () => this.#status(),
      connected: () => {
        logEvent(log, 'proxy_connected', {})
        this.emit('connected', { proxyUrl, address })
      },
      disconnected: ({ code, reason, keyRefused }) => {
        const mistake = keyRefused ? 'the proxy refuses the worker key' : MISTAKES[code]
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

  #status(): WorkerStatus {
    const { members } = this.#options.backend.status()
    const { members: slots, waiting } = this.#slots.stats()
    return {
      type: 'worker_status',
      healthy: members.some((member) => member.healthy),
      ...getUnavailable(members),
      ...getCommonTextIds(members),
      ...getWarning(members),
      load: waiting + slots.reduce((sum, slot) => sum + slot.inFlight, 0),
      models: this.#models.map(({ id, maxModelLen }) =>
        maxModelLen === undefined ? { id } : { id, max_model_len: maxModelLen },
      ),
      weight_version: getCommonWeightVersion(members),
      draining: this.#draining,
    }
  }

  /** Resolves after the first look, so that the first hello tells the models. */
  async #watchStatus(): Promise<void> {
    try {
      this.#models = await this.#options.backend.models()
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

/** The shared limit as a dispatcher with one member. What waits here is bounded by the limits of the proxies. */
function createSlots(maxConcurrency: number, clock: Clock): Dispatcher {
  const waitMs = Number.POSITIVE_INFINITY
  const absent = () => ({ code: 'internal', message: 'the worker has no slots' }) as const
  const slots = new Dispatcher({ queueLimit: Number.POSITIVE_INFINITY, waitMs, absent, clock })
  slots.addMember({ id: 'slots', maxConcurrency, healthy: true, draining: false, models: [] })
  return slots
}

/** What the engines serve if they agree; in the middle of an update they do not, and each turn's own word counts. */
function getCommonWeightVersion(members: readonly BackendMember[]): string | null {
  const versions = new Set(members.filter((member) => member.healthy).map((member) => member.weightVersion))
  const [version] = versions
  return versions.size === 1 ? (version ?? null) : null
}

/** Two engines that make the same of the text are one to whoever compares. */
function getCommonTextIds(members: readonly BackendMember[]): Pick<WorkerStatus, 'text_ids'> {
  const byIds = new Map<string, NonNullable<WorkerStatus['text_ids']>['engines'][number]>()
  for (const { healthy, name, models, textIds, chatIds = {} } of members) {
    if (!healthy || !textIds) continue
    const chat_ids = Object.fromEntries(Object.entries(chatIds).map(([chat, ids]) => [chat, [...ids]]))
    byIds.set(JSON.stringify([textIds, chatIds]), { name, models, ids: [...textIds], chat_ids })
  }
  return byIds.size === 0 ? {} : { text_ids: { text: TOKENIZER_TEXT, engines: [...byIds.values()] } }
}

function getWarning(members: readonly BackendMember[]): Pick<WorkerStatus, 'warning'> {
  const warnings = members.flatMap(({ name, warning }) => (warning ? [`${name}: ${warning}`] : []))
  return warnings.length === 0 ? {} : { warning: warnings.join('; ').slice(0, MAX_WARNING_LENGTH) }
}

/** None of its engines takes new calls, though one at least is well. */
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
