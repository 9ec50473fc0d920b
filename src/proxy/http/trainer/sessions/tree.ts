/** Reads the tree of a session's turns: their parents, durations and reasons for new rows, without texts and ids. */
import type { Static } from 'typebox'
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import { getPromptReason, getRecordedParent } from '../../../session/matching/recorded-parent.ts'
import { readEchoAnnotation } from '../../../session/prompts/echo-annotation.ts'
import { readSpecialTokens } from '../../../session/prompts/special-tokens.ts'
import { isSplit, NewRowExplainer, type NewRowExplanation } from '../../../session/trajectories/new-rows.ts'
import { TrajectoryBuilder } from '../../../session/trajectories/trajectories.ts'
import { NO_MARKS, type SessionMarks } from '../../../store/port/marks.ts'
import type { TurnStep } from '../../../store/port/turn-store.ts'
import type { TreeTurn } from './read-schemas.ts'

type TreeTurnJson = Static<typeof TreeTurn>

/** A turn, and the ids of its parents, which are converted to indices when all turns have been read. */
interface TurnLinks {
  readonly shown: Omit<TreeTurnJson, keyof LinkFields>
  readonly turnId: string
  readonly base: { readonly turnId: string; readonly tokenCount: number } | undefined
  readonly messageParent: string | null | undefined
  readonly newRow: NewRowExplanation | undefined
}

/** The fields of a turn that depend on other turns, and its labels. */
type LinkFields = Pick<
  TreeTurnJson,
  'parent' | 'shared_tokens' | 'continues' | 'message_parent' | 'new_row' | 'excluded' | 'labels' | 'note'
>

/** Returns the turns in the order of their indices, with the parents that the builder of rows determines. */
export async function readTree(steps: AsyncIterable<TurnStep>, marks: SessionMarks): Promise<TreeTurnJson[]> {
  const rows = new TrajectoryBuilder()
  const newRows = new NewRowExplainer()
  const turns: TurnLinks[] = []
  for await (const step of steps) {
    const found = rows.add(step)
    const { base, shared } = step.promptStep
    turns.push({
      shown: toTreeTurn(step, found.agentRole),
      turnId: step.turnId,
      base: base === null ? undefined : { turnId: base, tokenCount: shared },
      messageParent: getRecordedParent(step),
      newRow: newRows.add(step, found, rows.getParent(step.turnId)?.turnId),
    })
  }
  const indexById = new Map(turns.map(({ turnId, shown }) => [turnId, shown.index]))
  const getIndex = (turnId: string | undefined) => indexById.get(turnId ?? '') ?? null
  const exclusions = rows.listExclusions()
  return turns.map(({ shown, turnId, base, messageParent, newRow }) => {
    const before = rows.getParent(turnId)
    const prefixTurn = before ?? base
    return {
      ...shown,
      parent: getIndex(prefixTurn?.turnId),
      shared_tokens: prefixTurn?.tokenCount ?? 0,
      continues: before !== undefined,
      message_parent: getIndex(messageParent === undefined ? before?.turnId : (messageParent ?? undefined)),
      new_row: newRow ? newRowToWire(newRow, getIndex) : null,
      excluded: exclusions.get(turnId) ?? null,
      ...(marks.turns[shown.index] ?? NO_MARKS),
    }
  })
}

function newRowToWire(newRow: NewRowExplanation, getIndex: (turnId: string | undefined) => number | null) {
  const { why: reason, turnId, text, changes = [] } = newRow
  return {
    why: reason,
    turn: getIndex(turnId ?? undefined),
    text,
    split: isSplit(newRow),
    changes: changes.map(({ what, before, now }) => ({ what, before, now })),
  }
}

function toTreeTurn(turn: TurnStep, agentRole: string): TurnLinks['shown'] {
  const { base, shared, rest } = turn.promptStep
  const after = (ms: number | null) => (ms === null ? null : ms - turn.startedAtMs)
  return withFormerNames({
    index: turn.index,
    agent_role: agentRole,
    status: turn.status,
    prompt_tokens: (base === null ? 0 : shared) + rest.length,
    sampled_tokens: turn.completionTokenIds.length,
    prompt_reason: getPromptReason(turn),
    changed_calls: readEchoAnnotation(turn)?.kinds ?? [],
    special_tokens: readSpecialTokens(turn),
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
  })
}
