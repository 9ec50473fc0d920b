/** Computes totals and groups of sessions, for both stores. */
import type { SessionRecord } from './session-record.ts'

/** The totals of several sessions. */
export interface SessionTotals {
  sessions: number
  active: number
  completed: number
  aborted: number
  /** The number of sessions with failed or interrupted turns. */
  failed: number
  /** The number of sessions with inexact turns. */
  inexact: number
  turns: number
  sampledTokens: number
  rewards: RewardStatistics
}

/** The statistics of the sessions that have a reward. */
export interface RewardStatistics {
  count: number
  /** null if there is no reward; the same applies to `min`, `max` and `std`. */
  mean: number | null
  min: number | null
  max: number | null
  /** Sample standard deviation (divided by n - 1), as GRPO trainers compute it; 0 for a single reward. */
  std: number | null
  /** The histogram of the rewards, lowest first. A bar with equal `from` and `to` contains exactly that reward. */
  histogram: { from: number; to: number; count: number }[]
}

/** The sessions that share a value under a metadata key: usually the samples of one task. */
export interface SessionGroup extends Omit<SessionTotals, 'rewards'> {
  value: string | number | boolean
  rewards: Omit<RewardStatistics, 'histogram'>
  /** The mean of each reward component over the sessions that have it. */
  components: Record<string, number>
  /** The number of rewards that are at least the requested one; null: none was requested. */
  passed: number | null
  /** The creation time of its first session. */
  createdAtMs: number
}

/** The numbers of sessions in the database. */
export interface SessionCount {
  /** The number of all sessions. */
  readonly sessions: number
  readonly active: number
  /** The number of sessions that `TurnStore.sweep` would remove. */
  readonly expired: number
}

/** The maximum number of histogram bars; there are fewer if there are fewer distinct rewards. */
const MAX_BARS = 20

type GroupValue = SessionGroup['value']

/** The fields of a session that aggregates read. */
export type SessionAggregateFields = Pick<
  SessionRecord,
  | 'status'
  | 'createdAtMs'
  | 'metadata'
  | 'reward'
  | 'turnCount'
  | 'failedTurns'
  | 'inexactTurns'
  | 'sampledTokens'
>

/** The aggregate of some sessions, to which others can be added. */
export interface Aggregate {
  readonly counts: Omit<SessionTotals, 'rewards'>
  readonly rewards: number[]
  readonly components: Map<string, { sum: number; count: number }>
  /** The creation time of the first session. */
  createdAtMs: number
}

/** Aggregates by the value of a metadata key; the aggregate of all sessions has the key `undefined`. */
export type AggregateMap = Map<GroupValue | undefined, Aggregate>

/** Aggregates sessions. @param by the metadata key; sessions without it are ignored. Absent: all sessions together */
export function aggregateSessions(sessions: Iterable<SessionAggregateFields>, by?: string): AggregateMap {
  const aggregates: AggregateMap = new Map()
  for (const session of sessions) {
    const value = by === undefined ? undefined : getGroupValue(session, by)
    if (by !== undefined && value === undefined) continue
    const target = getOrCreateAggregate(aggregates, value)
    addSession(target, session)
    if (by !== undefined) addComponents(target, session)
  }
  return aggregates
}

/** Merges the aggregates of other sessions into `aggregates`. */
export function addAggregates(aggregates: AggregateMap, more: AggregateMap): void {
  for (const [value, { counts, rewards, components, createdAtMs }] of more) {
    const target = getOrCreateAggregate(aggregates, value)
    for (const name of Object.keys(counts) as (keyof Aggregate['counts'])[])
      target.counts[name] += counts[name]
    for (const reward of rewards) target.rewards.push(reward)
    for (const [name, { sum, count }] of components) addComponent(target, name, sum, count)
    target.createdAtMs = Math.min(target.createdAtMs, createdAtMs)
  }
}

/** Returns the totals. @param aggregates the aggregate of all sessions together */
export function sumTotals(aggregates: AggregateMap): SessionTotals {
  const { counts, rewards } = getOrCreateAggregate(aggregates, undefined)
  return { ...counts, rewards: { ...toStatistics(rewards), histogram: toHistogram(rewards) } }
}

/** Returns the groups, the newest first. @param aggregates the aggregates by the value of a metadata key */
export function toGroups(aggregates: AggregateMap, passReward?: number): SessionGroup[] {
  const groups = [...aggregates].map(([value, { counts, createdAtMs, rewards, components }]) => ({
    value: value!,
    ...counts,
    rewards: toStatistics(rewards),
    components: Object.fromEntries([...components].map(([name, { sum, count }]) => [name, sum / count])),
    passed: passReward === undefined ? null : rewards.filter((reward) => reward >= passReward).length,
    createdAtMs,
  }))
  return groups.sort((a, b) => b.createdAtMs - a.createdAtMs)
}

/** Returns the value of a session under a metadata key; undefined: the session is in no group. */
export function getGroupValue(
  { metadata }: Pick<SessionAggregateFields, 'metadata'>,
  by: string,
): GroupValue | undefined {
  const value = Object.hasOwn(metadata, by) ? metadata[by] : undefined
  const isPlain = typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean'
  return isPlain ? value : undefined
}

function getOrCreateAggregate(aggregates: AggregateMap, value: GroupValue | undefined): Aggregate {
  const existing = aggregates.get(value)
  if (existing !== undefined) return existing
  const counts = {
    ...{ sessions: 0, active: 0, completed: 0, aborted: 0 },
    ...{ failed: 0, inexact: 0, turns: 0, sampledTokens: 0 },
  }
  const target = { counts, rewards: [], components: new Map(), createdAtMs: Number.POSITIVE_INFINITY }
  aggregates.set(value, target)
  return target
}

function addSession(aggregate: Aggregate, session: SessionAggregateFields): void {
  const { counts } = aggregate
  counts.sessions += 1
  counts[session.status] += 1
  counts.failed += session.failedTurns > 0 ? 1 : 0
  counts.inexact += session.inexactTurns > 0 ? 1 : 0
  counts.turns += session.turnCount
  counts.sampledTokens += session.sampledTokens
  aggregate.createdAtMs = Math.min(aggregate.createdAtMs, session.createdAtMs)
  if (session.reward !== null) aggregate.rewards.push(session.reward.reward)
}

/** Adds a session's reward components. Totals omit them, to avoid parsing their JSON. */
function addComponents(aggregate: Aggregate, { reward }: SessionAggregateFields): void {
  for (const [name, value] of Object.entries(reward?.components ?? {}))
    addComponent(aggregate, name, value, 1)
}

function addComponent({ components }: Aggregate, name: string, sum: number, count: number): void {
  const before = components.get(name) ?? { sum: 0, count: 0 }
  components.set(name, { sum: before.sum + sum, count: before.count + count })
}

function toStatistics(rewards: readonly number[]): Omit<RewardStatistics, 'histogram'> {
  const count = rewards.length
  if (count === 0) return { count, mean: null, std: null, min: null, max: null }
  const [min, max] = getRange(rewards)
  // Equal rewards have no deviation, regardless of how their mean is rounded.
  if (min === max) return { count, mean: min, std: 0, min, max }
  const mean = rewards.reduce((sum, reward) => sum + reward / count, 0)
  const variance = rewards.reduce((sum, reward) => sum + (reward - mean) ** 2 / (count - 1), 0)
  return { count, mean, std: Math.sqrt(variance), min, max }
}

function toHistogram(rewards: readonly number[]): RewardStatistics['histogram'] {
  const counts = new Map<number, number>()
  for (const reward of rewards) counts.set(reward, (counts.get(reward) ?? 0) + 1)
  if (counts.size <= MAX_BARS) {
    const distinct = [...counts].sort(([a], [b]) => a - b)
    return distinct.map(([reward, count]) => ({ from: reward, to: reward, count }))
  }
  const [min, max] = getRange(rewards)
  const edge = (bar: number) => min + ((max - min) / MAX_BARS) * bar
  const bars = Array.from({ length: MAX_BARS }, (_, bar) => ({
    from: edge(bar),
    to: bar === MAX_BARS - 1 ? max : edge(bar + 1),
    count: 0,
  }))
  for (const reward of rewards) {
    const bar = Math.min(MAX_BARS - 1, Math.floor(((reward - min) / (max - min)) * MAX_BARS))
    bars[bar]!.count += 1
  }
  return bars
}

/** Returns the smallest and largest number. `Math.min(...numbers)` fails for a hundred thousand arguments. */
function getRange(numbers: readonly number[]): [min: number, max: number] {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]
  for (const number of numbers) {
    min = Math.min(min, number)
    max = Math.max(max, number)
  }
  return [min, max]
}
