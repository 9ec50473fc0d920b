/** A line of a rollout's output file. */
import Type, { type Static } from 'typebox'
import type { AgentLoopOutput } from '../../rollout/agent-loop-output.ts'

/** The fields that identify a row. */
export const FileRow = Type.Object({
  task_index: Type.Integer(),
  sample_index: Type.Integer(),
  instance_id: Type.Union([Type.String(), Type.Null()]),
  /** Digest of the task's content; absent in rows of earlier versions. */
  task_digest: Type.Optional(Type.String()),
  metrics: Type.Object({ num_rows: Type.Integer(), failed: Type.Optional(Type.Integer()) }),
})

export type FileRow = Static<typeof FileRow>

export type OutputRow = Required<Omit<FileRow, 'metrics'>> & AgentLoopOutput
