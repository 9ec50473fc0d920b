/** The samples of one task, and what GRPO makes of their rewards. */
import type { Session, Turn } from './wire.ts'

export interface Sample {
  session: Session
  /** Its reward less the mean, as Dr. GRPO has it; null: without a reward. */
  centred: number | null
  /** The same divided by the standard deviation, as GRPO has it. */
  normed: number | null
}

export interface Samples {
  /** The best first, those without a reward last. */
  samples: readonly Sample[]
  mean: number
  /** Of a sample (divided by n - 1), as PyTorch's `std` computes it. */
  std: number
  /** How many have a reward. */
  count: number
  /** Of several rewards all are the same, so nothing can be learned from them. */
  isFlat: boolean
}

export function toSamples(sessions: readonly Session[]): Samples {
  const rewards = sessions.flatMap(({ reward }) => reward ?? [])
  const mean = rewards.reduce((sum, reward) => sum + reward / rewards.length, 0)
  // Compared, not computed: rounding would leave equal rewards a tiny deviation, and divide by it.
  const areEqual = rewards.every((reward) => reward === rewards[0])
  const squares = rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0)
  const std = areEqual ? 0 : Math.sqrt(squares / (rewards.length - 1))
  const samples = sessions.map((session): Sample => {
    if (session.reward === null) return { session, centred: null, normed: null }
    if (areEqual) return { session, centred: 0, normed: 0 }
    const centred = session.reward - mean
    return { session, centred, normed: centred / std }
  })
  samples.sort((a, b) => (b.session.reward ?? -Infinity) - (a.session.reward ?? -Infinity))
  return { samples, mean, std, count: rewards.length, isFlat: areEqual && rewards.length > 1 }
}

/** What the work on the task ended with: the last answer of the main line; undefined: there is none. */
export function finalAnswer(turns: readonly Turn[]): Turn | undefined {
  return turns.findLast(({ line, status }) => line === 'main' && status === 'completed')
}

/** Metadata keys that trainers give a task's samples, in the order in which they are tried. */
export const GROUP_KEYS = ['instance_id', 'task_id', 'task', 'group', 'uid', 'prompt_id']

/** The API's list of the sessions that have this value. @param value JSON text */
export function groupPath(by: string, value: string): string {
  return `sessions?limit=1000&metadata.${encodeURIComponent(by)}=${encodeURIComponent(value)}`
}

/** Asks for something of each sample, of four at a time. @returns the answers by session id */
export async function loadEach<T>(
  samples: readonly Sample[],
  load: (sessionId: string) => Promise<T>,
): Promise<Map<string, T>> {
  const loaded = new Map<string, T>()
  const waiting = samples.map(({ session }) => session.session_id)
  const next = async (): Promise<void> => {
    for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) loaded.set(id, await load(id))
  }
  await Promise.all([next(), next(), next(), next()])
  return loaded
}
