import type { Transitions } from '../../src/base/transitions.ts'

/** Returns the pairs of different states, from and to, between which a transition is allowed, and all other pairs. */
export function listTransitions<State extends string>(transitions: Transitions<State>) {
  const states = Object.keys(transitions) as State[]
  const pairs = states.flatMap((from) => states.filter((to) => to !== from).map((to) => [from, to] as const))
  const isAllowed = ([from, to]: readonly [State, State]) => transitions[from].includes(to)
  return { allowed: pairs.filter(isAllowed), forbidden: pairs.filter((pair) => !isAllowed(pair)) }
}
