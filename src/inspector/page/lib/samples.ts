/** Loads the samples of one task, and computes the advantages that GRPO derives from their rewards. */
import type { Session, Turn } from './wire.ts'

/** A sample of a task: a session with its advantages. */
export interface Sample {
  session: Session
  /** The reward minus the mean (Dr. GRPO); null without a reward. */
  centred: number | null
  /** `centred` divided by the standard deviation (GRPO); null without a reward. */
  normed: number | null
}

/** The samples of a task, with statistics of their rewards. */
export interface Samples {
  /** The samples by descending reward; those without a reward are last. */
  samples: readonly Sample[]
  mean: number
  /** The sample standard deviation (divided by n - 1), as PyTorch's `std` computes it. */
  std: number
  /** The number of samples with a reward. */
  count: number
  /** Whether there are several rewards and all are equal, so that the group contributes no gradient. */
  isFlat: boolean
}

export function toSamples(sessions: readonly Session[]): Samples {
  const rewards = sessions.flatMap(({ reward }) => reward ?? [])
  const mean = rewards.reduce((sum, reward) => sum + reward / rewards.length, 0)
  // For equal rewards, rounding errors could yield a tiny standard deviation, by which advantages would be divided.
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

/** Returns the last completed turn of the main agent role; undefined if there is none. */
export function getFinalResponse(turns: readonly Turn[]): Turn | undefined {
  return turns.findLast(({ agent_role, status }) => agent_role === 'main' && status === 'completed')
}

/** Metadata keys by which trainers mark the samples of one task, in order of precedence. */
export const GROUP_KEYS = ['instance_id', 'task_id', 'task', 'group', 'uid', 'prompt_id']

/**
 * Returns the API path that lists the sessions with a metadata value.
 * @param by metadata key
 * @param value JSON text
 */
export function formatGroupPath(by: string, value: string): string {
  return `sessions?limit=1000&metadata.${encodeURIComponent(by)}=${encodeURIComponent(value)}`
}

/**
 * Loads a value for each sample, four at a time.
 * @returns the values by session id
 */
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
