/**
 * Port: a record that several equal proxies write to. A session has an owner at a time, the proxy whose memory its calls go
 * by, and an epoch, which is raised when it gets another one. Where a record has one proxy for good, there is no such port.
 */
import { ProxyError } from '../../../base/errors.ts'

/** A proxy that shares the record, this one among them. */
export interface SharingProxy {
  /** The number of its lease. */
  readonly id: number
  /** Of its machine or pod. */
  readonly name: string
  /** Where the others reach it; undefined: it does not listen yet. */
  readonly url: string | undefined
  /** It takes no new calls; its sessions go to others. */
  readonly isDraining: boolean
  /** Up to which change it has followed the controls. */
  readonly seen: number
  /** It is paused, and none of its calls runs. */
  readonly isDrained: boolean
}

/** What is set for all proxies, under a name. */
export interface ControlSetting {
  readonly name: string
  /** As JSON has it. */
  readonly value: unknown
  /** Later changes have greater numbers. */
  readonly change: number
}

/** What is on record of all proxies when one renews its lease. */
export interface RenewedLease {
  readonly lease: number
  /** Those whose leases are good. */
  readonly proxies: readonly SharingProxy[]
  /** Leases that ran out a while ago. */
  readonly over: readonly number[]
  readonly controls: readonly ControlSetting[]
}

/** What a proxy tells the others of itself. */
export interface OwnState {
  url?: string
  isDraining?: boolean
  isDrained?: boolean
}

/** A session that is this proxy's own from now on. */
export interface ClaimedSession {
  readonly epoch: number
  /** Its owner before has gone without a word: nobody knows whether the last answers reached their agents. */
  readonly wasLost: boolean
}

export interface SharedRecord {
  /** Resolves when this proxy's lease is good. @throws ProxyError `store_failed` when it is not for a while */
  valid(): Promise<void>
  /** @returns the proxy whose the session is, if it is another one's; it may be seen to leave by {@link goneOf} */
  ownerOf(sessionId: string): Promise<SharingProxy | undefined>
  /**
   * Makes the session this proxy's own; turns that an earlier owner left open become `interrupted`.
   * @param seizes also from an owner who is there
   * @returns undefined: there is no such session, or it is another proxy's
   */
  claim(sessionId: string, seizes?: boolean): Promise<ClaimedSession | undefined>
  /**
   * Makes a rollout this proxy's own, unless another one runs it.
   * @returns the other one; undefined: it is this proxy's
   */
  claimRollout(rolloutId: string): Promise<SharingProxy | undefined>
  /** @returns the other proxy that runs the rollout; undefined: there is none */
  findRollout(rolloutId: string): Promise<SharingProxy | undefined>
  /** Forgets a rollout of this proxy. Claims that follow see it. */
  releaseRollout(rolloutId: string): Promise<void>
  /** All whose leases are good, this one included, as of the last second. */
  readonly proxies: readonly SharingProxy[]
  readonly self: SharingProxy | undefined
  /** Aborts when that proxy's lease has run out. */
  goneOf(id: number): AbortSignal
  /** Tells the others, at once. */
  tell(state: OwnState): Promise<void>
  /** @returns the number of the change; this proxy follows it at once */
  setControl(name: string, value: unknown): Promise<number>
  /** `follow` is called with all that is set, and with each change, in order; the next one waits for what it returns. */
  followControls(follow: (setting: ControlSetting) => Promise<void>): void
  /** Called when the lease was ended by others: what this proxy remembers of any session may be old. */
  onLost(listener: () => void): void
}

/** What a call gets whose session is another proxy's by now. */
export function sessionMoved(sessionId: string): ProxyError {
  return new ProxyError('session_moved', `Session ${sessionId} has moved to another node`, { retryAfterS: 1 })
}

export function isMoved(error: unknown): boolean {
  return error instanceof ProxyError && error.code === 'session_moved'
}
