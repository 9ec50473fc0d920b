/** Rewards that come after a consumer has fetched their session without one: the session is not delivered again. */
import { LruCache } from '../../../base/lru-cache.ts'
import type { Activity } from '../state/activity.ts'

/** Sessions that are remembered; a reward that comes after so many others is not counted. */
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

  /** Rewards since the start of the process. */
  get count(): number {
    return this.#count
  }

  /** Records that a consumer has got the session with this reward. */
  delivered(sessionId: string, reward: object | null): void {
    if (reward === null) this.#unrewarded.set(sessionId, true)
    else this.#unrewarded.delete(sessionId)
  }
}
