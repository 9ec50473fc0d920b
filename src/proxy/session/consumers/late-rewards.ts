/** Counts rewards set after a consumer fetched the session without one. The session is not delivered again. */
import { LruCache } from '../../../base/lru-cache.ts'
import type { Activity } from '../state/activity.ts'

/** Number of sessions tracked. The reward of a session that others have displaced is not counted. */
const MAX_SESSIONS = 100_000

export class LateRewards {
  readonly #unrewarded = new LruCache<string, true>(MAX_SESSIONS, () => 1)
  #count = 0

  constructor(activity: Activity) {
    activity.listen((event) => {
      if (event.type !== 'reward' || this.#unrewarded.get(event.session_id) === undefined) return
      this.#unrewarded.delete(event.session_id)
      this.#count += 1
    })
  }

  /** Number of late rewards since the process started. */
  get count(): number {
    return this.#count
  }

  /** Records that a consumer has fetched the session with this reward. */
  recordDelivery(sessionId: string, reward: object | null): void {
    if (reward === null) this.#unrewarded.set(sessionId, true)
    else this.#unrewarded.delete(sessionId)
  }
}
