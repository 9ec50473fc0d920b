/** Answers of several nodes as one. Pure: what the nodes said in, what the trainer reads out. */
import type { Static } from 'typebox'
import * as reads from '../trainer/read/schemas.ts'
import type { Session } from '../trainer/sessions/schemas.ts'

export type Group = Static<typeof reads.Group>
export type Totals = Static<typeof reads.Totals>
/** How rewards of one node come to. */
export type Rewards = Group['rewards']
/** What a list is put in order by. */
export type ListedSession = Pick<
  Static<typeof Session>,
  'session_id' | 'created_at' | 'updated_at' | 'reward' | 'turn_count' | 'sampled_tokens'
>

const COUNTS = Object.keys(reads.countFields) as (keyof typeof reads.countFields)[]

export type TokenForest = Static<typeof reads.TokenForest>

/** One beside the other: what sessions of several nodes share is there once per node. */
export function mergeForests(forests: readonly TokenForest[]): TokenForest {
  let before = 0
  const moved = forests.map(({ sessions, rows, nodes }) => {
    const from = before
    before += nodes.length
    const placeOf = (place: number | null) => (place === null ? null : place + from)
    return {
      sessions,
      rows: rows.map((row) => ({ ...row, leaf: placeOf(row.leaf) })),
      nodes: nodes.map((node) => ({ ...node, parent: placeOf(node.parent) })),
    }
  })
  return {
    sessions: moved.flatMap(({ sessions }) => sessions),
    rows: moved.flatMap(({ rows }) => rows),
    nodes: moved.flatMap(({ nodes }) => nodes),
  }
}

type Counts = Pick<Totals, (typeof COUNTS)[number]>

/** Groups of one value become one; newest first, as a node has them. */
export function mergeGroups(lists: readonly (readonly Group[])[]): Group[] {
  const byValue = new Map<Group['value'], Group>()
  for (const group of lists.flat()) {
    const known = byValue.get(group.value)
    byValue.set(group.value, known ? joined(known, group) : group)
  }
  return [...byValue.values()].sort((a, b) => b.created_at - a.created_at)
}

function joined(a: Group, b: Group): Group {
  const rewards = poolRewards(a.rewards, b.rewards)
  return {
    ...a,
    ...sums(a, b),
    rewards,
    ...(a.passed !== undefined && { passed: a.passed + (b.passed ?? 0) }),
    zero_variance: rewards.count > 1 && rewards.std === 0,
    created_at: Math.min(a.created_at, b.created_at),
  }
}

/** Bars of different widths cannot be put together: there is no histogram of several nodes. */
export function mergeTotals(all: readonly Totals[]): Totals | undefined {
  const [first, ...others] = all
  if (first === undefined || others.length === 0) return first
  return others.reduce(
    (a, b) => ({ ...sums(a, b), rewards: { ...poolRewards(a.rewards, b.rewards), histogram: [] } }),
    first,
  )
}

function sums(a: Counts, b: Counts): Counts {
  return Object.fromEntries(COUNTS.map((name) => [name, a[name] + b[name]])) as unknown as Counts
}

/** Mean and sample deviation of both samples together (Chan, Golub and LeVeque, 1979). */
export function poolRewards(a: Rewards, b: Rewards): Rewards {
  if (a.count === 0) return { ...b }
  if (b.count === 0) return { ...a }
  const count = a.count + b.count
  const apart = b.mean! - a.mean!
  const squares =
    (a.std ?? 0) ** 2 * (a.count - 1) +
    (b.std ?? 0) ** 2 * (b.count - 1) +
    (apart ** 2 * a.count * b.count) / count
  return {
    count,
    mean: a.mean! + (apart * b.count) / count,
    std: Math.sqrt(squares / (count - 1)),
    min: Math.min(a.min!, b.min!),
    max: Math.max(a.max!, b.max!),
  }
}

const SORT_FIELDS = {
  created: 'created_at',
  changed: 'updated_at',
  reward: 'reward',
  turns: 'turn_count',
  tokens: 'sampled_tokens',
} as const

/**
 * The first `limit` of what the nodes listed, in the list's order, each list in that order already.
 * @returns how many of each node's are among them, too
 */
export function mergeLists<T extends ListedSession>(
  lists: readonly (readonly T[])[],
  { sort, order, limit }: { sort: string; order: string; limit: number },
): { sessions: T[]; taken: number[] } {
  const field = SORT_FIELDS[sort as keyof typeof SORT_FIELDS] ?? 'created_at'
  const sign = order === 'asc' ? 1 : -1
  const taken = lists.map(() => 0)
  const sessions: T[] = []
  while (sessions.length < limit) {
    let best: number | undefined
    for (const [place, list] of lists.entries()) {
      const next = list[taken[place]!]
      if (next === undefined) continue
      if (best === undefined || comesBefore(next[field], lists[best]![taken[best]!]![field], sign))
        best = place
    }
    if (best === undefined) break
    sessions.push(lists[best]![taken[best]!]!)
    taken[best]! += 1
  }
  return { sessions, taken }
}

/** Sessions without a reward come last, whatever the order. */
function comesBefore(a: number | null, b: number | null, sign: number): boolean {
  if (a === null) return false
  return b === null || (a - b) * sign < 0
}

/** Every series with its node as a label; one family's series stand together, as the format asks. */
export function mergeMetrics(texts: readonly { node: string; text: string }[]): string {
  const families = new Map<string, { about: string[]; series: string[] }>()
  for (const { node, text } of texts) {
    let family = { about: [] as string[], series: [] as string[] }
    for (const line of text.split('\n')) {
      const name = /^# (?:HELP|TYPE|UNIT) (\S+)/.exec(line)?.[1]
      if (name !== undefined) {
        family = families.get(name) ?? { about: [], series: [] }
        families.set(name, family)
        if (!family.about.includes(line)) family.about.push(line)
      } else if (line !== '' && !line.startsWith('#')) family.series.push(labelled(line, node))
    }
  }
  const lines = [...families.values()].flatMap(({ about, series }) => [...about, ...series])
  return `${lines.join('\n')}\n`
}

function labelled(line: string, node: string): string {
  const label = `node="${node}"`
  return line.replace(/^([A-Za-z_:][\w:]*)(?:\{(.*?)\})?(?= )/, (_, name: string, labels?: string) =>
    labels ? `${name}{${labels},${label}}` : `${name}{${label}}`,
  )
}
