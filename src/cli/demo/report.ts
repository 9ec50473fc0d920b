/** Formats the results of the demo's rollouts. */

import type { AgentLoopOutput } from '../../protocol/schema/agent-loop-output.ts'
import { revealExactly } from '../../protocol/transcript/visible.ts'
import { type Column, renderTable } from '../table.ts'
import type { DemoRollout } from './rollouts.ts'

const COLUMNS: readonly Column<DemoRollout>[] = [
  { header: 'session', value: ({ rows }) => rows[0].extra_fields.session_id },
  { header: 'task', value: ({ task }) => task.question },
  { header: 'turns', value: ({ rows }) => String(sum(rows, (row) => row.num_turns)), align: 'right' },
  { header: 'prompt', value: ({ rows }) => String(sum(rows, countPromptTokens)), align: 'right' },
  { header: 'sampled', value: ({ rows }) => String(sum(rows, countSampledTokens)), align: 'right' },
  { header: 'mean logprob', value: ({ rows }) => computeMeanLogprob(rows).toFixed(3), align: 'right' },
  { header: 'reward', value: ({ rows }) => rows[0].reward_score?.toFixed(2) ?? '-', align: 'right' },
  { header: 'rows', value: ({ rows }) => String(rows.length), align: 'right' },
]

/** Returns a table with a line per rollout: `prompt` counts prompt tokens, `sampled` those that would be trained on. */
export function formatRolloutTable(rollouts: readonly DemoRollout[]): string {
  return renderTable(COLUMNS, rollouts)
}

function countSampledTokens({ response_mask }: AgentLoopOutput): number {
  return response_mask.reduce((ones, bit) => ones + bit, 0)
}

function countPromptTokens(row: AgentLoopOutput): number {
  return row.prompt_ids.length + row.response_ids.length - countSampledTokens(row)
}

function computeMeanLogprob(rows: readonly AgentLoopOutput[]): number {
  // Logprobs are 0 where the mask is 0.
  const total = sum(rows, (row) => row.response_logprobs.reduce((a, b) => a + b, 0))
  return total / Math.max(1, sum(rows, countSampledTokens))
}

function sum<T>(items: readonly T[], value: (item: T) => number): number {
  return items.reduce((total, item) => total + value(item), 0)
}

/** A style that distinguishes sampled tokens from the others. */
interface MaskStyle {
  sampled(text: string): string
  read(text: string): string
}

export const COLOURED: MaskStyle = {
  sampled: (text) => `\u001b[1;32m${text}\u001b[0m`,
  read: (text) => `\u001b[2m${text}\u001b[0m`,
}

export const PLAIN: MaskStyle = { sampled: (text) => `⟦${text}⟧`, read: (text) => text }

/** Formats a trajectory as text that shows its mask and is safe for a terminal. */
export function showTrajectory(
  { prompt_ids, response_ids, response_mask }: AgentLoopOutput,
  decode: (ids: readonly number[]) => string,
  style: MaskStyle,
): string {
  let shown = style.read(revealExactly(decode(prompt_ids)))
  for (let start = 0, end = 0; start < response_ids.length; start = end) {
    while (end < response_ids.length && response_mask[end] === response_mask[start]) end++
    const text = revealExactly(decode(response_ids.slice(start, end)))
    shown += response_mask[start] === 1 ? style.sampled(text) : style.read(text)
  }
  return shown
}
