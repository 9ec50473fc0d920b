/**
 * The admin controls of all nodes of a database: a pause, the weight version, engines. The node that receives a change
 * stores it in the database, and every node, including one that starts later, applies it within a second.
 */
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { EngineRegistration, MemberRegistry, RegistryEntry } from '../../engines/port/registry.ts'
import type { ControlSetting, NodeCoordination } from '../../store/port/node-coordination.ts'
import { type ControlDependencies, Controls } from '../operator/controls.ts'
import { createNodeSecret, NODE_SECRETS, type NodeIdentity } from './node-identity.ts'

const POLL_MS = 100

interface ClusterControlParts extends ControlDependencies {
  shared: NodeCoordination
  /** The registry of this node. In relay mode, workers connect to each node themselves. */
  registry: MemberRegistry
  identity: NodeIdentity
}

const ENGINE = 'engine '

/** The admin controls of a node that shares its database with others. */
export class ClusterControls extends Controls implements MemberRegistry {
  readonly #shared: NodeCoordination
  readonly #registry: MemberRegistry
  readonly #identity: NodeIdentity
  #isPaused = false
  /** The number of pauses and resumptions so far, by which a later one makes an earlier one obsolete. */
  #pauses = 0

  constructor({ shared, registry, identity, ...parts }: ClusterControlParts) {
    super(parts)
    this.#shared = shared
    this.#registry = registry
    this.#identity = identity
    shared.followControls((setting) => this.#follow(setting))
  }

  override async pause(timeoutMs: number): Promise<number> {
    const endMs = this.parts.clock.nowMs() + timeoutMs
    const change = await this.#shared.setControl('paused', true)
    const inFlight = await this.waitUntilDrained(timeoutMs)
    for (;;) {
      const undrained = this.#shared.proxies.filter(({ seen, isDrained }) => seen < change || !isDrained)
      if (undrained.length === 0) return 0
      if (this.parts.clock.nowMs() >= endMs && this.#shared.proxies.length === 1) return inFlight
      if (this.parts.clock.nowMs() >= endMs)
        throw createNotDrainedError(undrained.map(({ name, url }) => url ?? name))
      await new Promise<void>((resolve) => this.parts.clock.after(POLL_MS, resolve))
    }
  }

  override async resume(): Promise<void> {
    await this.#waitForAllNodes(await this.#shared.setControl('paused', false))
  }

  override async announce(version: string | number | null): Promise<void> {
    await this.#waitForAllNodes(await this.#shared.setControl('weight_version', version))
  }

  /**
   * Replaces the secret in three steps: the new secret is added, then it signs, then the old one is removed. Each step
   * waits until all nodes have applied the one before, so that no node signs with a secret that another does not
   * accept.
   */
  override async rotateNodeSecret(): Promise<void> {
    const [old] = this.#identity.secrets
    const secret = createNodeSecret()
    const steps = old === undefined ? [[secret]] : [[old, secret], [secret, old], [secret]]
    for (const step of steps) await this.#waitForAllNodes(await this.#shared.setControl(NODE_SECRETS, step))
  }

  list(): RegistryEntry[] {
    return this.#registry.list()
  }

  async register(engine: EngineRegistration): Promise<RegistryEntry> {
    const entry = await this.#registry.register(engine)
    await this.#waitForAllNodes(await this.#shared.setControl(`${ENGINE}${entry.id}`, engine))
    return entry
  }

  async remove(id: string): Promise<void> {
    await this.#registry.remove(id)
    await this.#waitForAllNodes(await this.#shared.setControl(`${ENGINE}${id}`, null))
  }

  /** Waits until every node has applied a change. A node whose lease ends is no longer waited for. */
  async #waitForAllNodes(change: number): Promise<void> {
    while (this.#shared.proxies.some(({ seen }) => seen < change))
      await new Promise<void>((resolve) => this.parts.clock.after(POLL_MS, resolve))
  }

  /** Applies a setting that a node has stored. */
  async #follow({ name, value }: ControlSetting): Promise<void> {
    if (name === 'paused') await this.#setPaused(value === true)
    else if (name === 'weight_version') await super.announce(value as string | number | null)
    else if (name === NODE_SECRETS) this.#identity.setSecrets(value)
    else if (name.startsWith(ENGINE)) {
      await this.#followEngine(name.slice(ENGINE.length), value as EngineRegistration | null).catch(
        (thrown: unknown) =>
          logEvent(this.parts.logger, 'node_engine_rejected', { err: toProxyError(thrown) }),
      )
    }
  }

  async #followEngine(id: string, engine: EngineRegistration | null): Promise<void> {
    if (engine !== null) await this.#registry.register(engine)
    else if (this.#registry.list().some((entry) => entry.id === id)) await this.#registry.remove(id)
  }

  async #setPaused(isPaused: boolean): Promise<void> {
    this.#pauses += 1
    const pause = this.#pauses
    const isOver = () => pause !== this.#pauses
    if (isPaused) {
      this.pauseBackend()
      void this.waitUntilDrained(Number.POSITIVE_INFINITY, isOver).then(() => {
        if (!isOver()) this.#reportDrained(true)
      })
    } else {
      this.#reportDrained(false)
      if (this.#isPaused) await this.resumeBackend()
    }
    this.#isPaused = isPaused
  }

  /** Publishes whether this node is drained. If the database is unavailable, the next renewal of the lease does. */
  #reportDrained(isDrained: boolean): void {
    this.#shared.publish({ isDrained }).catch(() => {})
  }
}

function createNotDrainedError(proxies: readonly string[]): ProxyError {
  const message = `Requests are still in flight at ${proxies.join(', ')}; the pause stays in effect: try again`
  return new ProxyError('not_drained', message, { retryAfterS: 1 })
}
