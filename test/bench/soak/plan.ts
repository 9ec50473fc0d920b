/** How long things take in a soak, so that an hour and twenty seconds are the same soak. */
import type { Durability } from './world.ts'

export interface SoakPlan {
  seconds: number
  /** Agents at work at once, each in a session of its own. */
  sessions: number
  /** Of all agents together. */
  callsPerSecond: number
  workers: number
  /** Agents that mean harm. */
  hostile: number
  seed: number
  durability: Durability
}

export interface Times {
  legs: readonly Leg[]
  /** Between two calls of an agent, in the mean: its tools are at work. */
  thinkMs: number
  /** More than an agent ever waits between two calls. */
  ttlS: number
}

/** A way to run the proxy. */
export interface Leg {
  /** 1 for the first time that all of them take their turn. */
  round: number
  mode: 'local' | 'relay'
  prompts: 'chat' | 'token'
  fromMs: number
  toMs: number
}

export const MODES = [
  { mode: 'local', prompts: 'chat' },
  { mode: 'relay', prompts: 'chat' },
  { mode: 'local', prompts: 'token' },
  { mode: 'relay', prompts: 'token' },
] as const

/** The first warms up; the last is held against the second. */
export const ROUNDS = 3
/** Shorter runs have one round, and prove nothing of growth. */
export const PROOF_S = 1_800

/** @param fromMs the begin, as all other times in milliseconds since 1970 */
export function timesOf({ seconds, sessions, callsPerSecond }: SoakPlan, fromMs: number): Times {
  const rounds = seconds < PROOF_S ? 1 : ROUNDS
  const legMs = (seconds * 1_000) / (rounds * MODES.length)
  const legs = Array.from({ length: rounds * MODES.length }, (_, at) => ({
    round: 1 + Math.floor(at / MODES.length),
    ...MODES[at % MODES.length]!,
    fromMs: fromMs + at * legMs,
    toMs: fromMs + (at + 1) * legMs,
  }))
  const thinkMs = (1_000 * sessions) / callsPerSecond
  return { legs, thinkMs, ttlS: Math.ceil((2.5 * thinkMs) / 1_000) + 30 }
}

export function nameOf({ mode, prompts }: Pick<Leg, 'mode' | 'prompts'>): string {
  return `${mode}, ${prompts} mode`
}
