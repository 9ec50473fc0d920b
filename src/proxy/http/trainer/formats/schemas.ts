/** Schemas of the route that exports sessions in foreign formats. */
import Type from 'typebox'
import { STRICT } from '../../schemas/described.ts'
import { TrajectoriesQuery } from '../sessions/schemas.ts'

const choice = Type.Pick(TrajectoriesQuery, ['select', 'side_calls', 'rejected', 'finished_only'])

export const ExportQuery = Type.Object(
  {
    format: Type.Enum(['atif', 'training_trace', 'sft'], {
      description:
        "`atif`: Harbor's Agent Trajectory Interchange Format; `training_trace`: OpenEnv's `TrainingTrace`; `sft`: " +
        '`input_ids` and `labels`, one line per row',
    }),
    ...choice.properties,
    ids: Type.Boolean({ default: true, description: 'Whether `atif` steps include token ids and logprobs' }),
  },
  STRICT,
)

/** A line of the response, whose content the format defines. */
export const ExportLine = Type.Record(Type.String(), Type.Unknown())
