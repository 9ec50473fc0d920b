/** The main thread's side of a record that several proxies share: it keeps the lease, and knows the others. */
import { setTimeout as sleep } from 'node:timers/promises'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type {
  ClaimedSession,
  ControlSetting,
  OwnState,
  RenewedLease,
  SharedRecord,
  SharingProxy,
} from '../port/shared-record.ts'
import type { StoreThread } from '../record/store-thread.ts'
import type { SharedWrites } from './writer-loop.ts'

const BEAT_MS = 1_000

/** Counted from before a renewal is sent: others wait for two seconds more. */
const VALID_MS = 5_000

/** How long somebody waits for a lease that is not good, and how often it is tried. */
const PATIENCE_MS = 10_000
const RETRY_MS = 50

export class PostgresShared implements SharedRecord {
  readonly #writer: StoreThread<SharedWrites>
  readonly #logger: Logger | undefined
  #followControl: ((setting: ControlSetting) => Promise<void>) | undefined
  readonly #lostListeners: (() => void)[] = []
  readonly #gone = new Map<number, AbortController>()
  #lease: number | undefined
  #state: OwnState = {}
  #validUntilMs = 0
  #proxies: readonly SharingProxy[] = []
  /** Up to which change the controls were followed. */
  #seen = 0
  #timer: NodeJS.Timeout | undefined
  #beating: Promise<void> | undefined

  constructor(writer: StoreThread<SharedWrites>, logger?: Logger) {
    this.#writer = writer
    this.#logger = logger
  }

  /** Renews the lease from now on. */
  async start(): Promise<void> {
    await this.#beat()
    this.#timer = setInterval(() => void this.#beat().catch(() => {}), BEAT_MS)
    this.#timer.unref()
  }

  close(): void {
    clearInterval(this.#timer)
  }

  get proxies(): readonly SharingProxy[] {
    return this.#proxies
  }

  get self(): SharingProxy | undefined {
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

  async ownerOf(sessionId: string): Promise<SharingProxy | undefined> {
    await this.valid()
    return this.#other(await this.#writer.call('ownerOf', [sessionId]))
  }

  async claimRollout(rolloutId: string): Promise<SharingProxy | undefined> {
    await this.valid()
    return this.#other(await this.#writer.call('claimRollout', [rolloutId]))
  }

  async findRollout(rolloutId: string): Promise<SharingProxy | undefined> {
    return this.#other(await this.#writer.call('findRollout', [rolloutId]))
  }

  releaseRollout(rolloutId: string): Promise<void> {
    return this.#writer.call('releaseRollout', [rolloutId])
  }

  /** @param owner the number of a lease. @returns undefined: there is none, or it is this proxy's */
  #other(owner: number | undefined): SharingProxy | undefined {
    if (owner === undefined || owner === this.#lease) return undefined
    const known = this.#proxies.find(({ id }) => id === owner)
    // Its lease runs out, or it began a moment ago.
    return known ?? { id: owner, name: '', url: undefined, isDraining: false, seen: 0, isDrained: false }
  }

  claim(sessionId: string, seizes = false): Promise<ClaimedSession | undefined> {
    return this.#writer.call('claim', [sessionId, seizes])
  }

  goneOf(id: number): AbortSignal {
    const known = this.#gone.get(id) ?? new AbortController()
    this.#gone.set(id, known)
    return known.signal
  }

  async tell(state: OwnState): Promise<void> {
    this.#state = { ...this.#state, ...state }
    // One that is on its way may have left without it.
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

  /** One at a time: who asks meanwhile gets the same one. */
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
  #logChanges(now: readonly SharingProxy[], own: readonly number[]): void {
    const isIn = (nodes: readonly SharingProxy[], { id }: SharingProxy) =>
      nodes.some((node) => node.id === id)
    const before = this.#proxies
    for (const node of now.filter((each) => !isIn(before, each) && !own.includes(each.id)))
      logEvent(this.#logger, 'node_joined', { node: node.name, url: node.url })
    for (const node of before.filter((each) => !isIn(now, each) && !own.includes(each.id)))
      logEvent(this.#logger, node.isDraining ? 'node_left' : 'node_lost', { node: node.name, url: node.url })
  }

  #meet({ proxies }: RenewedLease): void {
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
    // Whoever has set it waits for all.
    if (this.#seen > before) await this.#writer.call('beat', [{ ...this.#state, seen: this.#seen }])
  }
}
