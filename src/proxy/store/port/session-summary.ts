/** What stores share of totals and groups: sessions counted one by one. */
import type { RewardStatistics, SessionGroup, SessionRecord, SessionTotals } from './turn-store.ts'

/** The most bars that a histogram has; fewer where there are fewer different rewards. */
const MAX_BARS = 20

type GroupValue = SessionGroup['value']

export function totalsOf(sessions: Iterable<SessionRecord>): SessionTotals {
  const tally = new Tally()
  for (const session of sessions) tally.add(session)
  return {
    ...tally.counts,
    rewards: { ...statisticsOf(tally.rewards), histogram: histogramOf(tally.rewards) },
  }
}

export function groupsOf(sessions: Iterable<SessionRecord>, by: string): SessionGroup[] {
  const tallies = new Map<GroupValue, Tally>()
  for (const session of sessions) {
    const value = groupValue(session, by)
    if (value === undefined) continue
    const tally = tallies.get(value) ?? new Tally()
    tallies.set(value, tally)
    tally.add(session)
  }
  const groups = [...tallies].map(([value, { counts, createdAtMs, rewards }]) => ({
    value,
    ...counts,
    rewards: statisticsOf(rewards),
    createdAtMs,
  }))
  return groups.sort((a, b) => b.createdAtMs - a.createdAtMs)
}

function groupValue({ metadata }: SessionRecord, by: string): GroupValue | undefined {
  const value = Object.hasOwn(metadata, by) ? metadata[by] : undefined
  const isPlain = typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean'
  return isPlain ? value : undefined
}

class Tally {
  readonly counts = {
    sessions: 0,
    active: 0,
    completed: 0,
    aborted: 0,
    failed: 0,
    inexact: 0,
    turns: 0,
    sampledTokens: 0,
  }
  readonly rewards: number[] = []
  createdAtMs = Number.POSITIVE_INFINITY

  add(session: SessionRecord): void {
    this.counts.sessions += 1
    this.counts[session.status] += 1
    this.counts.failed += session.failedTurns > 0 ? 1 : 0
    this.counts.inexact += session.inexactTurns > 0 ? 1 : 0
    this.counts.turns += session.turnCount
    this.counts.sampledTokens += session.sampledTokens
    this.createdAtMs = Math.min(this.createdAtMs, session.createdAtMs)
    if (session.reward !== null) this.rewards.push(session.reward.reward)
  }
}

function statisticsOf(rewards: readonly number[]): Omit<RewardStatistics, 'histogram'> {
  const count = rewards.length
  if (count === 0) return { count, mean: null, std: null, min: null, max: null }
  const [min, max] = rangeOf(rewards)
  // Equal rewards have no spread, whatever rounding makes of their mean.
  if (min === max) return { count, mean: min, std: 0, min, max }
  const mean = rewards.reduce((sum, reward) => sum + reward / count, 0)
  const variance = rewards.reduce((sum, reward) => sum + (reward - mean) ** 2 / (count - 1), 0)
  return { count, mean, std: Math.sqrt(variance), min, max }
}

function histogramOf(rewards: readonly number[]): RewardStatistics['histogram'] {
  const counts = new Map<number, number>()
  for (const reward of rewards) counts.set(reward, (counts.get(reward) ?? 0) + 1)
  if (counts.size <= MAX_BARS) {
    const distinct = [...counts].sort(([a], [b]) => a - b)
    return distinct.map(([reward, count]) => ({ from: reward, to: reward, count }))
  }
  const [min, max] = rangeOf(rewards)
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

/** In a loop: a call takes no hundred thousand arguments. */
function rangeOf(numbers: readonly number[]): [min: number, max: number] {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]
  for (const number of numbers) {
    min = Math.min(min, number)
    max = Math.max(max, number)
  }
  return [min, max]
}
