/**
 * The port of a database to which several equal nodes write. A session has one owner at a time, the node whose cache
 * its requests use, and an epoch, which increases when the owner changes. A database with a single node has no such
 * port.
 */
import { ProxyError } from '../../../base/errors.ts'

/** A node that shares the database; the local node is one of them. */
export interface NodeStatus {
  /** The number of its lease. */
  readonly id: number
  /** The name of its machine or pod. */
  readonly name: string
  /** The URL at which other nodes reach it; undefined: it does not listen yet. */
  readonly url: string | undefined
  /** Whether it accepts no new requests; its sessions move to other nodes. */
  readonly isDraining: boolean
  /** The number of the last control change that it has applied. */
  readonly seen: number
  /** Whether it is paused and has no request in flight. */
  readonly isDrained: boolean
}

/** A named setting that applies to all nodes. */
export interface ControlSetting {
  readonly name: string
  /** A JSON value. */
  readonly value: unknown
  /** The number of its last change; later changes have higher numbers. */
  readonly change: number
}

/** The state of all nodes, read when one renews its lease. */
export interface LeaseRenewal {
  readonly lease: number
  /** The nodes whose leases are valid. */
  readonly proxies: readonly NodeStatus[]
  /** Leases that expired long enough ago for other nodes to end them. */
  readonly over: readonly number[]
  /** The number of sessions of crashed nodes that this node has freed since its previous renewal. */
  readonly freed: number
  readonly controls: readonly ControlSetting[]
}

/** The state that a node publishes to the others. */
export interface NodeStateReport {
  url?: string
  isDraining?: boolean
  isDrained?: boolean
}

/** A session that this node now owns. */
export interface SessionOwnership {
  readonly epoch: number
  /** Whether its previous owner crashed: delivery of the last responses is unknown. */
  readonly wasLost: boolean
}

/** The operations by which nodes share a database. */
export interface NodeCoordination {
  /**
   * Resolves when this node's lease is valid.
   * @throws ProxyError `store_failed` if it stays invalid for several seconds
   */
  waitUntilValid(): Promise<void>
  /** Returns the owner of a session if it is another node; {@link getLossSignal} reports when that node is lost. */
  readOwner(sessionId: string): Promise<NodeStatus | undefined>
  /**
   * Makes this node the owner of the session; turns that an earlier owner left open become `interrupted`.
   * @param seizes whether to take the session even from an owner with a valid lease
   * @returns undefined: there is no such session, or another node owns it
   */
  claim(sessionId: string, seizes?: boolean): Promise<SessionOwnership | undefined>
  /**
   * Makes this node the owner of a rollout, unless another one runs it.
   * @returns the other node; undefined: this node is the owner
   */
  claimRollout(rolloutId: string): Promise<NodeStatus | undefined>
  /** Finds the owner of a rollout. @returns the other node that runs it; undefined: there is none */
  findRollout(rolloutId: string): Promise<NodeStatus | undefined>
  /** Releases a rollout of this node, so that any node can claim it. */
  releaseRollout(rolloutId: string): Promise<void>
  /** The nodes with valid leases, this one included, as of the last lease renewal. */
  readonly proxies: readonly NodeStatus[]
  /** This node; undefined until its first lease renewal. */
  readonly self: NodeStatus | undefined
  /** Returns a signal that aborts when the node with this id is no longer one of {@link proxies}. */
  getLossSignal(id: number): AbortSignal
  /** Publishes the state to the other nodes immediately. */
  publish(state: NodeStateReport): Promise<void>
  /** Changes a setting, which this node applies immediately. @returns the number of the change */
  setControl(name: string, value: unknown): Promise<number>
  /** Calls `follow` with all settings, and then with each change, in order and one at a time. */
  followControls(follow: (setting: ControlSetting) => Promise<void>): void
  /** Resolves when this node has applied all settings. @throws an error of `follow` */
  waitForControls(): Promise<void>
  /** Calls the listener when other nodes have ended this node's lease: all cached session state may be stale. */
  onLost(listener: () => void): void
}

/** Creates the error of a request whose session another node now owns. */
export function createSessionMovedError(sessionId: string): ProxyError {
  return new ProxyError('session_moved', `Session ${sessionId} has moved to another node`, { retryAfterS: 1 })
}

/** Returns whether an error has the code `session_moved`. */
export function isSessionMovedError(error: unknown): boolean {
  return error instanceof ProxyError && error.code === 'session_moved'
}
