/** The times of a soak, which scale so that an hour and twenty seconds are the same soak. */
import type { Durability } from './world.ts'

export interface SoakPlan {
  seconds: number
  /** Concurrent agents, each in a separate session. */
  sessions: number
  /** Requests per second of all agents together. */
  requestsPerSecond: number
  workers: number
  /** The number of hostile agents. */
  hostile: number
  seed: number
  durability: Durability
}

interface Times {
  legs: readonly Leg[]
  /** The mean time between two requests of an agent, in which its tools run. */
  thinkMs: number
  /** Longer than an agent ever waits between two requests. */
  ttlS: number
}

/** A part of a soak with one configuration of the proxy. */
export interface Leg {
  /** The round, from 1; each round runs every leg once. */
  round: number
  mode: 'local' | 'relay'
  prompts: 'chat' | 'token'
  fromMs: number
  toMs: number
}

const MODES = [
  { mode: 'local', prompts: 'chat' },
  { mode: 'relay', prompts: 'chat' },
  { mode: 'local', prompts: 'token' },
  { mode: 'relay', prompts: 'token' },
] as const

/** The first round warms up; the last is compared with the second. */
export const ROUNDS = 3
/** Shorter runs have one round, and cannot show growth. */
const MIN_GROWTH_S = 1_800

/**
 * Computes the times.
 * @param fromMs the start; all times are in milliseconds since 1970
 */
export function getTimes({ seconds, sessions, requestsPerSecond }: SoakPlan, fromMs: number): Times {
  const rounds = seconds < MIN_GROWTH_S ? 1 : ROUNDS
  const legMs = (seconds * 1_000) / (rounds * MODES.length)
  const legs = Array.from({ length: rounds * MODES.length }, (_, index) => ({
    round: 1 + Math.floor(index / MODES.length),
    ...MODES[index % MODES.length]!,
    fromMs: fromMs + index * legMs,
    toMs: fromMs + (index + 1) * legMs,
  }))
  const thinkMs = (1_000 * sessions) / requestsPerSecond
  return { legs, thinkMs, ttlS: Math.ceil((2.5 * thinkMs) / 1_000) + 30 }
}

export function getLegName({ mode, prompts }: Pick<Leg, 'mode' | 'prompts'>): string {
  return `${mode}, ${prompts} mode`
}
