/** A line of a rollout's output file. */
import Type, { type Static } from 'typebox'
import type { AgentLoopOutput } from '../../rollout/agent-loop-output.ts'

/** By these a row is known again. */
export const WrittenRow = Type.Object({
  task_index: Type.Integer(),
  sample_index: Type.Integer(),
  instance_id: Type.Union([Type.String(), Type.Null()]),
  metrics: Type.Object({ num_rows: Type.Integer(), failed: Type.Optional(Type.Integer()) }),
})

export type WrittenRow = Static<typeof WrittenRow>

export type OutputRow = Pick<WrittenRow, 'task_index' | 'sample_index' | 'instance_id'> & AgentLoopOutput
