/** The main thread's side of a database that several nodes share: renews the lease, and knows the other nodes. */
import { setTimeout as sleep } from 'node:timers/promises'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type {
  ControlSetting,
  LeaseRenewal,
  NodeCoordination,
  NodeInfo,
  OwnState,
  SessionOwnership,
} from '../port/node-coordination.ts'
import type { StoreThread } from '../record/store-thread.ts'
import type { NodeWriteMethods } from './writer-loop.ts'

const BEAT_MS = 1_000

/** The validity of a lease, counted from before a renewal is sent. Others wait for two seconds more. */
const VALID_MS = 5_000

/** The time limit of an operation that waits for a valid lease. */
const PATIENCE_MS = 10_000
const RETRY_MS = 50

export class PostgresShared implements NodeCoordination {
  readonly #writer: StoreThread<NodeWriteMethods>
  readonly #logger: Logger | undefined
  #followControl: ((setting: ControlSetting) => Promise<void>) | undefined
  readonly #lostListeners: (() => void)[] = []
  readonly #gone = new Map<number, AbortController>()
  #lease: number | undefined
  #state: OwnState = {}
  #validUntilMs = 0
  #proxies: readonly NodeInfo[] = []
  /** Number of the last control change that this node has applied. */
  #seen = 0
  #timer: NodeJS.Timeout | undefined
  #beating: Promise<void> | undefined

  constructor(writer: StoreThread<NodeWriteMethods>, logger?: Logger) {
    this.#writer = writer
    this.#logger = logger
  }

  /** Starts to renew the lease. */
  async start(): Promise<void> {
    await this.#beat()
    this.#timer = setInterval(() => void this.#beat().catch(() => {}), BEAT_MS)
    this.#timer.unref()
  }

  close(): void {
    clearInterval(this.#timer)
  }

  get proxies(): readonly NodeInfo[] {
    return this.#proxies
  }

  get self(): NodeInfo | undefined {
    return this.#proxies.find(({ id }) => id === this.#lease)
  }

  async valid(): Promise<void> {
    const untilMs = performance.now() + PATIENCE_MS
    while (performance.now() >= this.#validUntilMs) {
      if (performance.now() > untilMs)
        throw new ProxyError(
          'store_failed',
          'the database is unavailable: the owner of the session is unknown',
        )
      await this.#beat().catch(() => sleep(RETRY_MS))
    }
  }

  async readOwner(sessionId: string): Promise<NodeInfo | undefined> {
    await this.valid()
    return this.#other(await this.#writer.call('ownerOf', [sessionId]))
  }

  async claimRollout(rolloutId: string): Promise<NodeInfo | undefined> {
    await this.valid()
    return this.#other(await this.#writer.call('claimRollout', [rolloutId]))
  }

  async findRollout(rolloutId: string): Promise<NodeInfo | undefined> {
    return this.#other(await this.#writer.call('findRollout', [rolloutId]))
  }

  releaseRollout(rolloutId: string): Promise<void> {
    return this.#writer.call('releaseRollout', [rolloutId])
  }

  /** @param owner the number of a lease. @returns undefined: there is no owner, or it is this node */
  #other(owner: number | undefined): NodeInfo | undefined {
    if (owner === undefined || owner === this.#lease) return undefined
    const known = this.#proxies.find(({ id }) => id === owner)
    // Its lease is expiring, or was taken a moment ago.
    return known ?? { id: owner, name: '', url: undefined, isDraining: false, seen: 0, isDrained: false }
  }

  claim(sessionId: string, seizes = false): Promise<SessionOwnership | undefined> {
    return this.#writer.call('claim', [sessionId, seizes])
  }

  getGoneSignal(id: number): AbortSignal {
    const known = this.#gone.get(id) ?? new AbortController()
    this.#gone.set(id, known)
    return known.signal
  }

  async tell(state: OwnState): Promise<void> {
    this.#state = { ...this.#state, ...state }
    // A renewal in flight may have been sent without the new state.
    await this.#beating?.catch(() => {})
    await this.#beat()
  }

  async setControl(name: string, value: unknown): Promise<number> {
    const change = await this.#writer.call('setControl', [name, value])
    while (this.#seen < change) await this.#beat()
    return change
  }

  followControls(follow: (setting: ControlSetting) => Promise<void>): void {
    this.#followControl = follow
    void this.#beat().catch(() => {})
  }

  onLost(listener: () => void): void {
    this.#lostListeners.push(listener)
  }

  /** Renews the lease, one renewal at a time: concurrent callers share it. */
  #beat(): Promise<void> {
    this.#beating ??= this.#renew().finally(() => {
      this.#beating = undefined
    })
    return this.#beating
  }

  async #renew(): Promise<void> {
    const sentAtMs = performance.now()
    const renewed = await this.#writer.call('beat', [{ ...this.#state, seen: this.#seen }])
    if (renewed === undefined) {
      await this.#writer.call('renew', [])
      return this.#renew()
    }
    const previous = this.#lease
    this.#lease = renewed.lease
    if (previous !== undefined && previous !== renewed.lease) {
      logEvent(this.#logger, 'node_fenced', {})
      for (const listener of this.#lostListeners) listener()
    }
    if (renewed.freed > 0) logEvent(this.#logger, 'sessions_freed', { sessions: renewed.freed })
    if (previous !== undefined) this.#logChanges(renewed.proxies, [previous, renewed.lease])
    this.#validUntilMs = sentAtMs + VALID_MS
    this.#meet(renewed)
    await this.#follow(renewed.controls)
  }

  /** Logs which other nodes joined and left since the previous renewal. @param own this node's leases */
  #logChanges(now: readonly NodeInfo[], own: readonly number[]): void {
    const isIn = (nodes: readonly NodeInfo[], { id }: NodeInfo) => nodes.some((node) => node.id === id)
    const before = this.#proxies
    for (const node of now.filter((each) => !isIn(before, each) && !own.includes(each.id)))
      logEvent(this.#logger, 'node_joined', { node: node.name, url: node.url })
    for (const node of before.filter((each) => !isIn(now, each) && !own.includes(each.id)))
      logEvent(this.#logger, node.isDraining ? 'node_left' : 'node_lost', { node: node.name, url: node.url })
  }

  #meet({ proxies }: LeaseRenewal): void {
    this.#proxies = proxies
    for (const [id, gone] of this.#gone) {
      if (proxies.some((proxy) => proxy.id === id)) continue
      gone.abort()
      this.#gone.delete(id)
    }
  }

  async #follow(controls: readonly ControlSetting[]): Promise<void> {
    const follow = this.#followControl
    if (follow === undefined) return
    const before = this.#seen
    const changed = controls.filter(({ change }) => change > before).sort((a, b) => a.change - b.change)
    for (const setting of changed) {
      await follow(setting)
      this.#seen = setting.change
    }
    // The node that set the control waits until all nodes report the change.
    if (this.#seen > before) await this.#writer.call('beat', [{ ...this.#state, seen: this.#seen }])
  }
}
