/**
 * A row of a rollout as a trainer receives it, with the names of verl's `AgentLoopOutput`.
 * @see https://github.com/verl-project/verl/blob/main/verl/experimental/agent_loop/agent_loop.py
 */
import Type from 'typebox'
import {
  type Field,
  type FieldTable,
  type FieldValues,
  nullable,
  nullableText,
  numbersByName,
  pickFields,
  text,
  toProperties,
} from './field.ts'
import { withFormerFields } from './former-names.ts'
import { rowFields } from './row.ts'
import type { TokenDataJson } from './row-details.ts'

const count = (description: string) => ({ type: Type.Integer({ description }) })
const flag = (description: string) => ({ type: Type.Enum([0, 1], { description }) })

/** The numbers that a trainer averages. They describe the complete rollout and are equal in each of its rows. */
const metricFields = withFormerFields({
  agent_seconds: {
    type: Type.Number({
      description:
        'Seconds from the start of the first attempt to the end of the last, waits between attempts included',
    }),
  },
  tries: count('The number of times that the agent was run'),
  failed: flag('1: no attempt succeeded, and the row is a padding row'),
  padding: flag('1: a padding row. There is nothing to train on, and the sample needs a row'),
  num_rows: count('The number of rows of the rollout; each of them has the reward'),
  inexact_turns: count('The number of turns without exact token ids, which are in no row'),
} satisfies FieldTable)

const turnRewardFields = {
  start: { type: Type.Integer() },
  end: { type: Type.Integer() },
  reward: { type: Type.Number() },
} satisfies FieldTable

/** The extra fields that are not fields of the session's row. */
export const rolloutFields = {
  trial_id: { type: Type.String() },
  session_id: { type: text('The session of the last attempt') },
  agent_status: { type: Type.Enum(['completed', 'timeout', 'failed', 'error']) },
  error: {
    type: nullableText('Why the row is a padding row, or why the agent did not complete; null otherwise'),
  },
  row: { type: Type.Integer({ description: 'The index of the row in the rollout' }) },
  reward_components: { type: numbersByName('The parts of the reward') },
  turn_rewards: {
    type: Type.Array(Type.Object(toProperties(turnRewardFields)), {
      description:
        'The rewards of turns that have their own, with the span of each completion in `response_ids`',
    }),
  },
} satisfies FieldTable

/** The fields of a table that an `AgentLoopOutput` has in this place: in the row itself, or in `extra_fields`. */
type OutputFields<F extends FieldTable, Place extends 'row' | 'extra_fields'> = {
  [Name in keyof F as F[Name] extends { output: Place } ? Name : never]: F[Name]
}

function selectOutputFields<F extends FieldTable, Place extends 'row' | 'extra_fields'>(
  fields: F,
  place: Place,
) {
  const selected = Object.entries(fields).filter(([, field]) => 'output' in field && field.output === place)
  return Object.fromEntries(selected) as OutputFields<F, Place>
}

/** The fields of the session's row that an output has under the same names. */
export const ownRowFields = selectOutputFields(rowFields, 'row')
/** The fields of the session's row in `extra_fields`; in a padding row they are null, and booleans false. */
export const rowExtraFields = selectOutputFields(rowFields, 'extra_fields')

type ExtraRowFields = FieldValues<typeof rowExtraFields>
type PaddingExtra = {
  [Name in keyof ExtraRowFields]: ExtraRowFields[Name] extends boolean ? boolean : ExtraRowFields[Name] | null
}

export type AgentLoopMetrics = FieldValues<typeof metricFields>
export type AgentLoopExtraFields = FieldValues<typeof rolloutFields> & PaddingExtra

/** The extra fields. Those of release 0.1.0 come in the order of its files. */
export const extraFields = {
  ...pickFields(rolloutFields, ['trial_id', 'session_id', 'agent_status', 'error', 'row']),
  ...pickFields(rowExtraFields, ['agent_role', 'line']),
  ...rolloutFields,
  ...pickFields(rowExtraFields, ['finish_reason', 'finished', 'truncated', 'prompt_truncated']),
  ...rowExtraFields,
}

const { num_turns, ...tokenFields } = ownRowFields

/** The fields of an output. */
export const outputFields = {
  ...tokenFields,
  reward_score: {
    type: nullable(
      Type.Number({ description: 'The reward of the complete rollout, or of its agent role; null: none' }),
    ),
  },
  num_turns,
  metrics: { type: Type.Object(toProperties(metricFields)) },
  extra_fields: { type: Type.Object(toProperties(extraFields)) },
} satisfies Record<string, Field>

/** A row with the token data that its session captured: `routed_experts` is verl's own name, too. */
export type AgentLoopOutput = Omit<FieldValues<typeof outputFields>, 'extra_fields'> &
  TokenDataJson & {
    extra_fields: AgentLoopExtraFields
    /** Keys of `RolloutResult.images` in the order of their tokens. Absent: not requested. */
    images?: { sha256: string }[]
  }
