/** A line of a rollout's output file. */
import Type, { type Static } from 'typebox'
import type { AgentLoopOutput } from '../../protocol/schema/agent-loop-output.ts'
import { type FieldTable, type FieldValues, nullableText, toProperties } from '../../protocol/schema/field.ts'

/** The fields that identify a row. */
export const sampleFields = {
  task_index: { type: Type.Integer() },
  sample_index: { type: Type.Integer() },
  instance_id: { type: nullableText() },
  task_digest: { type: Type.String({ description: "Digest of the task's content" }) },
} satisfies FieldTable

/** The fields that are read from a row in a file of any version. */
export const FileRow = Type.Object({
  ...toProperties(sampleFields),
  /** Absent in rows of earlier versions. */
  task_digest: Type.Optional(Type.String()),
  metrics: Type.Object({ num_rows: Type.Integer(), failed: Type.Optional(Type.Integer()) }),
})

export type FileRow = Static<typeof FileRow>

export type OutputRow = FieldValues<typeof sampleFields> & AgentLoopOutput
