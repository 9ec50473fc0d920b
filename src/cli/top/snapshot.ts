/** What looks come to: states of the last one, and rates over those before it. */
import type { Look } from './look.ts'

/** A whole answer is counted when its turn ends: over less than this, rates would jump. */
const WINDOW_MS = 10_000
/** Clocks drift by less; a proxy that was started anew changes it by more. */
const SAME_START_S = 5

export type Snapshot = ReturnType<typeof snapshotOf>

/** The looks that rates are computed over, the oldest first. */
export class Looks {
  readonly #looks: Look[] = []

  add(look: Look): Snapshot {
    const last = this.#looks.at(-1)
    // Counters that began anew cannot be compared.
    if (last && Math.abs(startOf(look) - startOf(last)) > SAME_START_S) this.#looks.length = 0
    this.#looks.push(look)
    while (this.#looks.length > 2 && this.#looks[0]!.atMs < look.atMs - WINDOW_MS) this.#looks.shift()
    return snapshotOf(look, this.#looks[0]!)
  }
}

/** @param before an earlier look, or `now` itself where there is none: then no rate is known */
function snapshotOf(now: Look, before: Look) {
  const { health, members, open, metrics } = now
  const turns = turnsOf(now)
  const atS = now.atMs / 1_000
  const starts = metrics.values('process_start_time_seconds')
  const sum = (name: string, label?: string) => metrics.sum(`llm_proxy_${name}`, label)
  return {
    at: atS,
    status: health.status,
    mode: health.mode,
    version: health.version ?? null,
    uptime_s: starts.length === 0 ? null : Math.max(0, Math.round(atS - Math.min(...starts))),
    paused: sum('paused') > 0,
    paused_since: health.paused_since ?? null,
    calls: {
      engine: sum('turns_in_flight', 'phase="engine"'),
      queued: sum('turns_in_flight', 'phase="queued"'),
      proxy: sum('turns_in_flight', 'phase="proxy"'),
    },
    capacity: members.reduce((all, member) => all + (member.healthy ? member.max_concurrency : 0), 0),
    per_second: {
      sampled_tokens: rate(now, before, sampledBy),
      prompt_tokens: rate(now, before, ({ metrics }) => metrics.sum('llm_proxy_prompt_tokens_total')),
      turns: rate(now, before, (look) => turnsOf(look).completed),
    },
    turns: { ...turns, inexact_share: turns.completed === 0 ? null : turns.inexact / turns.completed },
    sessions_active: sum('sessions_active'),
    members,
    open_turns: open.turns,
    open_turns_total: open.total,
  }
}

/** Since the proxy started. */
function turnsOf({ metrics }: Look) {
  const ended = (outcome: string) => metrics.sum('llm_proxy_turns_total', `outcome="${outcome}"`)
  return {
    completed: ended('completed'),
    failed: ended('failed'),
    aborted: ended('aborted'),
    inexact: metrics.sum('llm_proxy_inexact_turns_total'),
  }
}

/** Those of open turns are not counted by the metrics yet, and came all the same. */
function sampledBy({ metrics, open }: Look): number {
  return metrics.sum('llm_proxy_completion_tokens_total') + open.sampled_tokens
}

function startOf({ metrics }: Look): number {
  return metrics.sum('process_start_time_seconds')
}

/** Tokens of a turn that fails are gone from the sum: there is no rate below 0. */
function rate(now: Look, before: Look, count: (look: Look) => number): number | null {
  if (now.atMs <= before.atMs) return null
  return Math.max(0, ((count(now) - count(before)) * 1_000) / (now.atMs - before.atMs))
}
