import assert from 'node:assert/strict'

/** The states of a long-lived object, each with the states that may follow it. */
export type Transitions<State extends string> = Readonly<Record<State, readonly State[]>>

/** Asserts that the state `to` may follow `from`. @throws AssertionError */
export function assertTransition<State extends string>(
  transitions: Transitions<State>,
  from: State,
  to: State,
): void {
  assert(transitions[from].includes(to), `the state ${from} must not become ${to}`)
}
