/** The admin controls: pause and resume, the weight version, the secret of nodes. */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type { Activity } from '../../session/state/activity.ts'
import type { WeightAnnouncement } from '../../session/turn/weight-announcement.ts'

const DRAIN_POLL_MS = 20

export interface ControlDependencies {
  backend: Backend
  weights: WeightAnnouncement
  activity: Activity
  logger?: Logger | undefined
  clock?: Clock
}

/** The admin controls of the only node of a database. */
export class Controls {
  protected readonly parts: ControlDependencies & { clock: Clock }

  constructor({ clock = systemClock, ...parts }: ControlDependencies) {
    this.parts = { ...parts, clock }
  }

  /**
   * Queues new requests until {@link resume}, and waits at most `timeoutMs` for the requests in flight to end.
   * @returns the number of requests that are still in flight
   * @throws ProxyError `not_drained` if requests are still in flight at several nodes
   */
  async pause(timeoutMs: number): Promise<number> {
    this.pauseBackend()
    return this.waitUntilDrained(timeoutMs)
  }

  /** Serves the queued requests and new ones. */
  async resume(): Promise<void> {
    await this.resumeBackend()
  }

  /** Sets the weight version of engines that do not report one. @param version null: none */
  async announce(version: string | number | null): Promise<void> {
    this.parts.weights.announced = version
    logEvent(this.parts.logger, 'weight_version_set', { weight_version: version })
    // A version that an engine reported earlier must not override this one.
    await this.parts.backend.refresh()
  }

  /**
   * Replaces the secret with which the nodes of the database authenticate to each other.
   * @throws ProxyError `unsupported` if this is the only node
   */
  async rotateNodeSecret(): Promise<void> {
    throw new ProxyError(
      'unsupported',
      'This proxy is the only node of its database: there is no secret to rotate',
    )
  }

  protected pauseBackend(): void {
    this.parts.backend.pause()
    this.parts.activity.emit({ type: 'paused' })
  }

  protected async resumeBackend(): Promise<void> {
    await this.parts.backend.resume()
    this.parts.activity.emit({ type: 'resumed' })
  }

  /**
   * Waits until all requests have ended, the timeout expires or `isOver` returns true.
   * @returns the number of requests that are in flight at that time
   */
  protected async waitUntilDrained(timeoutMs: number, isOver = () => false): Promise<number> {
    const { backend, clock } = this.parts
    const endMs = clock.nowMs() + timeoutMs
    for (;;) {
      const inFlight = backend.getStatus().members.reduce((sum, member) => sum + member.inFlight, 0)
      if (inFlight === 0 || isOver() || clock.nowMs() >= endMs) return inFlight
      await new Promise<void>((resolve) => clock.after(DRAIN_POLL_MS, resolve))
    }
  }
}
