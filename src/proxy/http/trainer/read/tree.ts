/** A session's turns without texts and ids: how they hang together, what they took, where a shared prefix broke. */
import type { Static } from 'typebox'
import { echoKindsOf } from '../../../session/prompts/echo-note.ts'
import { LineFinder } from '../../../session/roles/line-finder.ts'
import type { TurnOutline } from '../../../store/port/turn-store.ts'
import type { TreeTurn } from './schemas.ts'

/** The turns in call order. Of each outline only numbers and short texts are kept. */
export async function treeOf(outlines: AsyncIterable<TurnOutline>): Promise<Static<typeof TreeTurn>[]> {
  const lines = new LineFinder()
  const turns: Static<typeof TreeTurn>[] = []
  for await (const outline of outlines) turns.push(treeTurn(outline, lines.add(outline).line))
  const lengths = new Map(turns.map((turn) => [turn.index, turn.prompt_tokens + turn.sampled_tokens]))
  for (const turn of turns) {
    if (turn.parent !== null) turn.continues = turn.shared_tokens === lengths.get(turn.parent)
  }
  return turns
}

function treeTurn(turn: TurnOutline, line: string): Static<typeof TreeTurn> {
  const after = (ms: number | null) => (ms === null ? null : ms - turn.startedAtMs)
  return {
    index: turn.index,
    line,
    status: turn.status,
    parent: turn.base?.index ?? null,
    shared_tokens: turn.base?.shared ?? 0,
    continues: false,
    prompt_tokens: turn.promptTokens,
    sampled_tokens: turn.sampledTokens,
    prompt_reason: promptReasonOf(turn.annotations),
    changed_calls: [...echoKindsOf(turn)],
    started_at: turn.startedAtMs / 1000,
    first_token_ms: after(turn.firstTokenAtMs),
    duration_ms: after(turn.endedAtMs),
    finish_reason: turn.finishReason,
    exact: turn.exact,
    inexact_reason: turn.inexactReason,
    weight_version_start: turn.weightVersionStart,
    weight_version_end: turn.weightVersionEnd,
    retry_count: turn.retryCount,
    error: turn.error,
  }
}

function promptReasonOf(annotations: string): string | null {
  if (!annotations.includes('"prompt"')) return null
  const { prompt } = JSON.parse(annotations) as { prompt?: { reason?: string } | null }
  return prompt?.reason ?? null
}
