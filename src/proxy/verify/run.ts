/** Verifies many turns in one run, with a negative control. */
import { type Comparison, comparePairs, type TokenPair } from './compare.ts'
import type { SkipReason, TurnResult, VerifiableTurn, Verifier } from './verifier.ts'

/** The result of a run. */
export interface VerifyRun {
  /** `void`: no turn was compared, or the negative control failed, so that the comparisons are meaningless. */
  verdict: 'same' | 'differs' | 'void'
  /** The number of compared turns. */
  compared: number
  /** The number of compared turns that differ. */
  differing: number
  /** The number of skipped turns by reason. */
  skipped: Partial<Record<SkipReason, number>>
  /** The comparison of all tokens; null if none was compared. */
  overall: Comparison | null
  /**
   * The negative control: whether the engine noticed a deliberately changed prompt, and the number of turns that were
   * tried.
   */
  control: { caught: boolean; turns: number }
}

/** The maximum number of turns with which the control is tried. */
const CONTROL_TURNS = 5

/**
 * Verifies turns until the limit of compared turns is reached.
 * @param onTurn receives the result of each turn
 * @throws ProxyError see {@link Verifier.verify}
 */
export async function verifyTurns(
  verifier: Verifier,
  turns: AsyncIterable<VerifiableTurn>,
  { limit, signal, onTurn }: { limit: number; signal: AbortSignal; onTurn(result: TurnResult): void },
): Promise<VerifyRun> {
  const run = { compared: 0, differing: 0, skipped: {} as VerifyRun['skipped'] }
  const control = { caught: false, turns: 0 }
  const pairs: TokenPair[] = []
  for await (const turn of turns) {
    const verified = await verifier.verify(turn, signal)
    const { result } = verified
    if (result.reason !== undefined) run.skipped[result.reason] = (run.skipped[result.reason] ?? 0) + 1
    else {
      run.compared += 1
      if (result.verdict === 'differs') run.differing += 1
      for (const pair of verified.pairs) pairs.push(pair)
      if (!control.caught && control.turns < CONTROL_TURNS) {
        control.turns += 1
        control.caught = await verifier.runControl(turn, verified, signal)
      }
    }
    onTurn(result)
    if (run.compared >= limit) break
  }
  const verdict = !control.caught ? 'void' : run.differing > 0 ? 'differs' : 'same'
  return { verdict, ...run, overall: pairs.length === 0 ? null : comparePairs(pairs), control }
}
