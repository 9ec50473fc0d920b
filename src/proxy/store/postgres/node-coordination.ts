/** The coordination of nodes, on the main thread: renews the lease of this node, and tracks the other nodes. */
import { setTimeout as sleep } from 'node:timers/promises'
import { type Clock, systemClock } from '../../../base/clock.ts'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import { assertTransition, type Transitions } from '../../../base/transitions.ts'
import type { StoreThread } from '../common/store-thread.ts'
import type {
  ControlSetting,
  LeaseRenewal,
  NodeCoordination,
  NodeStateReport,
  NodeStatus,
  SessionOwnership,
} from '../port/node-coordination.ts'
import type { NodeWriteMethods } from './writer-loop.ts'

const BEAT_MS = 1_000

/**
 * The validity of a lease, counted from before a renewal is sent. Other nodes end the lease two seconds later at the
 * earliest.
 */
const VALID_MS = 5_000

/** The time limit of an operation that waits for a valid lease. */
const PATIENCE_MS = 10_000
const RETRY_MS = 50

/**
 * The state of this node. `expired`: it could not renew its lease in time, and does not know whether other nodes have
 * ended it. `fenced`: other nodes have ended its lease, and it acquires a new one.
 */
type NodeState = 'joining' | 'serving' | 'draining' | 'expired' | 'fenced' | 'closed'

export const NODE_TRANSITIONS: Transitions<NodeState> = {
  joining: ['serving', 'fenced', 'closed'],
  serving: ['draining', 'expired', 'fenced', 'closed'],
  draining: ['expired', 'fenced', 'closed'],
  expired: ['serving', 'draining', 'fenced', 'closed'],
  fenced: ['serving', 'draining', 'closed'],
  closed: [],
}

/**
 * The coordination of the nodes that share a PostgreSQL database: this node's lease, its published state and the
 * control settings.
 */
export class PostgresNodeCoordination implements NodeCoordination {
  readonly #writer: StoreThread<NodeWriteMethods>
  readonly #logger: Logger | undefined
  readonly #clock: Clock
  #followControl: ((setting: ControlSetting) => Promise<void>) | undefined
  readonly #lostListeners: (() => void)[] = []
  readonly #lossControllers = new Map<number, AbortController>()
  #state: NodeState = 'joining'
  #lease: number | undefined
  #published: NodeStateReport = {}
  #validUntilMs = 0
  #proxies: readonly NodeStatus[] = []
  /** All settings, as of the last renewal. */
  #controls: readonly ControlSetting[] = []
  /** The number of the last control change that this node has applied. */
  #seen = 0
  #following: Promise<void> | undefined
  #cancelNext: (() => void) | undefined
  #beating: Promise<void> | undefined

  constructor(writer: StoreThread<NodeWriteMethods>, logger?: Logger, clock: Clock = systemClock) {
    this.#writer = writer
    this.#logger = logger
    this.#clock = clock
  }

  /** Starts to renew the lease. */
  async start(): Promise<void> {
    await this.#beat()
    this.#beatLater()
  }

  close(): void {
    this.#cancelNext?.()
    this.#transition('closed')
  }

  get proxies(): readonly NodeStatus[] {
    return this.#proxies
  }

  get self(): NodeStatus | undefined {
    return this.#proxies.find(({ id }) => id === this.#lease)
  }

  async waitUntilValid(): Promise<void> {
    const untilMs = this.#clock.nowMs() + PATIENCE_MS
    while (this.#isExpired) {
      if (this.#clock.nowMs() > untilMs)
        throw new ProxyError(
          'store_failed',
          'the database is unavailable: the owner of the session is unknown',
        )
      await this.#beat().catch(() => sleep(RETRY_MS))
    }
  }

  async readOwner(sessionId: string): Promise<NodeStatus | undefined> {
    await this.waitUntilValid()
    return this.#findOther(await this.#writer.execute('ownerOf', [sessionId]))
  }

  async claimRollout(rolloutId: string): Promise<NodeStatus | undefined> {
    await this.waitUntilValid()
    return this.#findOther(await this.#writer.execute('claimRollout', [rolloutId]))
  }

  async findRollout(rolloutId: string): Promise<NodeStatus | undefined> {
    return this.#findOther(await this.#writer.execute('findRollout', [rolloutId]))
  }

  releaseRollout(rolloutId: string): Promise<void> {
    return this.#writer.execute('releaseRollout', [rolloutId])
  }

  /**
   * Returns the node with a lease.
   * @param owner the number of the lease
   * @returns undefined: there is no owner, or it is this node
   */
  #findOther(owner: number | undefined): NodeStatus | undefined {
    if (owner === undefined || owner === this.#lease) return undefined
    const existing = this.#proxies.find(({ id }) => id === owner)
    // If the node is not listed, its lease is expiring, or was acquired after the last renewal of this node's lease.
    return existing ?? { id: owner, name: '', url: undefined, isDraining: false, seen: 0, isDrained: false }
  }

  claim(sessionId: string, seizes = false): Promise<SessionOwnership | undefined> {
    return this.#writer.execute('claim', [sessionId, seizes])
  }

  getLossSignal(id: number): AbortSignal {
    const existing = this.#lossControllers.get(id) ?? new AbortController()
    this.#lossControllers.set(id, existing)
    return existing.signal
  }

  async publish(state: NodeStateReport): Promise<void> {
    this.#published = { ...this.#published, ...state }
    // A renewal in flight may have been sent without the new state.
    await this.#beating?.catch(() => {})
    await this.#beat()
  }

  async setControl(name: string, value: unknown): Promise<number> {
    const change = await this.#writer.execute('setControl', [name, value])
    await this.#waitUntilSeen(change)
    return change
  }

  followControls(follow: (setting: ControlSetting) => Promise<void>): void {
    this.#followControl = follow
    void this.#beat().catch(() => {})
  }

  async waitForControls(): Promise<void> {
    await this.#beat()
    await this.#waitUntilSeen(Math.max(0, ...this.#controls.map(({ change }) => change)))
  }

  onLost(listener: () => void): void {
    this.#lostListeners.push(listener)
  }

  get #isExpired(): boolean {
    return this.#clock.nowMs() >= this.#validUntilMs
  }

  #beatLater(): void {
    this.#cancelNext = this.#clock.after(BEAT_MS, () => {
      const holdsLease = this.#state === 'serving' || this.#state === 'draining'
      if (holdsLease && this.#isExpired) this.#transition('expired')
      void this.#beat().catch(() => {})
      this.#beatLater()
    })
  }

  /** Renews the lease, one renewal at a time: concurrent callers share it. */
  #beat(): Promise<void> {
    this.#beating ??= this.#renew().finally(() => {
      this.#beating = undefined
    })
    return this.#beating
  }

  async #renew(): Promise<void> {
    const sentAtMs = this.#clock.nowMs()
    const renewed = await this.#writer.execute('beat', [{ ...this.#published, seen: this.#seen }])
    if (this.#state === 'closed') return
    if (renewed === undefined) {
      this.#transition('fenced')
      await this.#writer.execute('renew', [])
      return this.#renew()
    }
    const previous = this.#lease
    this.#lease = renewed.lease
    if (previous !== undefined && previous !== renewed.lease) {
      this.#transition('fenced')
      logEvent(this.#logger, 'node_fenced', {})
      for (const listener of this.#lostListeners) listener()
    }
    if (renewed.freed > 0) logEvent(this.#logger, 'sessions_freed', { sessions: renewed.freed })
    if (previous !== undefined) this.#logChanges(renewed.proxies, [previous, renewed.lease])
    this.#validUntilMs = sentAtMs + VALID_MS
    this.#transition(this.#published.isDraining ? 'draining' : 'serving')
    this.#updateNodes(renewed)
    this.#controls = renewed.controls
    // Not awaited: a change may ask engines and workers that do not respond, for longer than the lease is valid. A
    // failed change is applied again after the next renewal.
    void this.#follow().catch(() => {})
  }

  /** Changes the state, and logs the change. Does nothing if the node is in this state already. */
  #transition(to: NodeState): void {
    const from = this.#state
    if (from === to) return
    assertTransition(NODE_TRANSITIONS, from, to)
    this.#state = to
    logEvent(this.#logger, 'node_state', { previous_state: from, state: to })
    if (to === 'expired') logEvent(this.#logger, 'node_expired', {})
    if (from === 'expired' && to !== 'fenced' && to !== 'closed') logEvent(this.#logger, 'node_renewed', {})
  }

  /** Logs the other nodes that joined or left since the previous renewal. @param own this node's leases */
  #logChanges(now: readonly NodeStatus[], own: readonly number[]): void {
    const isIn = (nodes: readonly NodeStatus[], { id }: NodeStatus) => nodes.some((node) => node.id === id)
    const before = this.#proxies
    for (const node of now.filter((each) => !isIn(before, each) && !own.includes(each.id)))
      logEvent(this.#logger, 'node_joined', { node: node.name, url: node.url })
    for (const node of before.filter((each) => !isIn(now, each) && !own.includes(each.id)))
      logEvent(this.#logger, node.isDraining ? 'node_left' : 'node_lost', { node: node.name, url: node.url })
  }

  /** Replaces the list of nodes, and aborts the signals of those that are no longer in it. */
  #updateNodes({ proxies }: LeaseRenewal): void {
    this.#proxies = proxies
    for (const [id, controller] of this.#lossControllers) {
      if (proxies.some((proxy) => proxy.id === id)) continue
      controller.abort()
      this.#lossControllers.delete(id)
    }
  }

  /** Applies the control changes that this node has not applied yet: concurrent callers share one application. */
  #follow(): Promise<void> {
    this.#following ??= this.#applyControls().finally(() => {
      this.#following = undefined
    })
    return this.#following
  }

  /** Waits until this node has applied a change. @throws an error of its application */
  async #waitUntilSeen(change: number): Promise<void> {
    while (this.#seen < change) {
      await this.#beat()
      await this.#follow()
    }
  }

  /** Applies the control changes in order, also those that renewals read meanwhile. */
  async #applyControls(): Promise<void> {
    const follow = this.#followControl
    if (follow === undefined) return
    for (let next = this.#findNextControl(); next !== undefined; next = this.#findNextControl()) {
      await follow(next)
      this.#seen = next.change
      // The node that set the control waits until all nodes report the change.
      void this.publish({}).catch(() => {})
    }
  }

  /** Returns the earliest change that this node has not applied. @returns undefined: there is none, or it is closed */
  #findNextControl(): ControlSetting | undefined {
    if (this.#state === 'closed') return undefined
    return this.#controls
      .filter(({ change }) => change > this.#seen)
      .sort((a, b) => a.change - b.change)
      .at(0)
  }
}
