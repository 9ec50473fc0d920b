/** One verification run over many turns, with its negative control. */
import { type Comparison, comparePairs, type TokenPair } from './compare.ts'
import type { SkipReason, TurnResult, VerifiableTurn, Verifier } from './verifier.ts'

export interface VerifyRun {
  /** `void`: nothing was compared, or the engine did not notice the changed prompt, so the result means nothing. */
  verdict: 'same' | 'differs' | 'void'
  /** Number of compared turns. */
  compared: number
  differing: number
  skipped: Partial<Record<SkipReason, number>>
  /** Over all tokens; null if none was compared. */
  overall: Comparison | null
  /** The negative control: a run with one prompt token changed on purpose. */
  control: { caught: boolean; turns: number }
}

/** Number of turns for the control. */
const CONTROL_TURNS = 5

/**
 * Verifies turns.
 * @param onTurn receives each result as it arrives
 * @throws ProxyError as {@link Verifier.verify}
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
