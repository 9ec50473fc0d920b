/**
 * The sessions API as schemas: they validate what comes in, are the types of the handlers, and make the OpenAPI
 * document. Names are the wire's. An unknown field or parameter is refused: a typo must not be silent.
 */
import Type, { type TSchema } from 'typebox'
import { MAX_SESSION_ID_BYTES } from '../../../session/state/session-id.ts'
import { nullable } from '../../schemas/nullable.ts'

const STRICT = { additionalProperties: false }
const nullableText = () => nullable(Type.String())
const fields = () => Type.Record(Type.String(), Type.Unknown())
const numbers = () => Type.Record(Type.String(), Type.Number())
const epochS = (description: string) =>
  Type.Number({ description: `${description}; seconds since the epoch` })

export const SessionParams = Type.Object({ sessionId: Type.String() })

const newSessionFields = {
  session_id: Type.Optional(
    Type.String({
      description: `1 to ${MAX_SESSION_ID_BYTES} bytes of whatever a URL can carry, slashes included`,
    }),
  ),
  metadata: Type.Optional(fields()),
  sampling_params: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), { description: 'Overrule what the agent asks for' }),
  ),
  trust_agent: Type.Optional(
    Type.Boolean({
      description: 'Whether an agent that has no more than the key of the session is heard on its own record',
    }),
  ),
  record: Type.Optional(
    Type.Array(Type.String(), {
      description:
        'What its turns are recorded with beyond ids and logprobs, where the engine gives it: `sampling_mask`, ' +
        '`top_logprobs:64`, `prompt_logprobs`, `routed_experts`, `weight_versions`; absent: what the proxy records',
    }),
  ),
  policy: Type.Optional(
    Type.Union([Type.String(), Type.Record(Type.String(), Type.String())], {
      description: 'The model or adapter of all calls, or of each line; see docs/policies.md',
    }),
  ),
  edited_calls: Type.Optional(
    Type.Union([Type.Literal('auto'), Type.Literal('keep'), Type.Literal('branch')], {
      description:
        'Of calls that the agent sends back otherwise than they were sampled: `keep` them, `branch`, or `auto`; ' +
        'absent: as the proxy has it',
    }),
  ),
  ttl_s: Type.Optional(
    Type.Union([Type.Number({ exclusiveMinimum: 0 }), Type.Null()], {
      description: 'Removed this long after its last change; null: never; absent: the default of the proxy',
    }),
  ),
}
export const NewSessionBody = Type.Object(newSessionFields, STRICT)

export const EmptyBody = Type.Object({}, STRICT)

export const RewardBody = Type.Object(
  {
    reward: Type.Number(),
    components: Type.Optional(numbers()),
    lines: Type.Optional(
      Type.Record(Type.String(), Type.Number(), {
        description: 'Rewards of single lines, which their rows have instead',
      }),
    ),
  },
  STRICT,
)

export const BatchDeleteBody = Type.Object({ session_ids: Type.Array(Type.String()) }, STRICT)

export const TurnsQuery = Type.Object(
  {
    messages: Type.Enum(['all', 'new'], {
      default: 'all',
      description:
        '`new`: only the messages and the part of a prompt that no earlier turn of the answer begins with',
    }),
    ids: Type.Boolean({ default: true, description: 'Whether turns show token ids and logprobs' }),
  },
  STRICT,
)

export function detailsParameter() {
  return Type.Optional(
    Type.String({
      description:
        'What to show beyond ids and logprobs, with commas: `sampling_mask`, `sampling_logprobs`, `top_logprobs`, ' +
        '`prompt_logprobs`, `routed_experts`, `weight_versions`, `sampling`; or `all`',
    }),
  )
}

export const TrajectoriesQuery = Type.Object(
  {
    prompt_length: Type.Optional(Type.Integer({ minimum: 1, description: 'Keep the last n prompt tokens' })),
    response_length: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Keep the first n response tokens' }),
    ),
    select: Type.String({
      default: 'all',
      pattern: '^(all|main|longest|last|policy:.+)$',
      description: '`all`, `main`, `longest`, `last`, or `policy:` and its name',
    }),
    side_calls: Type.Boolean({
      default: false,
      description: 'Train side calls, such as the generation of titles, as well; see docs/lines.md',
    }),
    finished_only: Type.Boolean({
      default: false,
      description:
        'No rows unless the session was completed: none of one that was aborted or is still active',
    }),
    per_turn: Type.Boolean({ default: false, description: 'A row per turn, with its whole prompt' }),
    images: Type.Boolean({
      default: false,
      description: 'The images of token mode, by their digests, as the agent sent them',
    }),
    details: detailsParameter(),
  },
  STRICT,
)

export const WaitQuery = Type.Object(
  { timeout_s: Type.Number({ minimum: 0, maximum: 600, default: 30 }) },
  STRICT,
)

export const sessionFields = {
  session_id: Type.String(),
  status: Type.Enum(['active', 'completed', 'aborted']),
  completed: Type.Boolean(),
  created_at: epochS('Created'),
  updated_at: epochS('Last change'),
  ended_at: nullable(epochS('Completed or aborted')),
  ttl_s: nullable(Type.Number()),
  metadata: fields(),
  sampling_params: fields(),
  trust_agent: Type.Boolean(),
  record: nullable(
    Type.Array(Type.String(), { description: 'As it was created with; null: what the proxy records of any' }),
  ),
  policy: Type.Record(Type.String(), Type.String(), { description: 'Models by line; `*`: of all others' }),
  edited_calls: nullable(
    Type.Union([Type.Literal('auto'), Type.Literal('keep'), Type.Literal('branch')], {
      description: 'As it was created with; null: as the proxy has it',
    }),
  ),
  reward: nullable(Type.Number()),
  reward_components: numbers(),
  reward_lines: numbers(),
  turn_count: Type.Integer({ description: 'Turns on record, whatever their status' }),
  num_turns: Type.Integer({ description: 'The same as `turn_count`' }),
  open_turns: Type.Integer({ description: 'Turns in flight' }),
  failed_turns: Type.Integer({ description: 'Turns that failed or were interrupted' }),
  inexact_turns: Type.Integer({ description: 'Completed turns that cannot be trained on' }),
  sampled_tokens: Type.Integer({ description: 'Of all turns together' }),
}
export const Session = Type.Object(sessionFields)

export const CreatedSession = Type.Object({
  session_id: Type.String(),
  status: Type.Enum(['created', 'exists']),
  agent_key: Type.Optional(
    Type.String({ description: "The key of the session's agent, for its LLM calls; on a proxy with keys" }),
  ),
})
/** What ending a session found. */
export const EndedSession = Type.Union([
  Session,
  Type.Object({
    session_id: Type.String(),
    status: Type.Literal('not_found'),
    completed: Type.Literal(false),
  }),
])
export const DeletedSession = Type.Object({
  session_id: Type.String(),
  status: Type.Enum(['deleted', 'not_found']),
  deleted: Type.Enum([0, 1], { description: 'How many sessions' }),
})
export const DeletedSessions = Type.Object({ deleted: Type.Integer({ description: 'How many sessions' }) })
export const WaitedSession = Type.Object({ ...sessionFields, timed_out: Type.Boolean() })

const line = () =>
  Type.String({ description: '`main`, `compaction`, `side` or `subagent:…`; see docs/lines.md' })

const turnFields = {
  turn_id: Type.String(),
  index: Type.Integer(),
  line: line(),
  line_rule: Type.String({ description: 'What found the line' }),
  status: Type.Enum(['open', 'completed', 'aborted', 'failed', 'interrupted']),
  dialect: Type.String(),
  request_messages: Type.Array(fields()),
  request_messages_from: Type.Optional(
    Type.Integer({ description: 'With `messages=new`: how many messages were left out before these' }),
  ),
  request_messages_of: Type.Optional(
    Type.Union([Type.String(), Type.Null()], {
      description: 'With `messages=new`: the turn whose request begins with the messages left out',
    }),
  ),
  prompt_of: Type.Optional(
    Type.Union([Type.String(), Type.Null()], {
      description:
        'With `messages=new`, of a completion: the turn whose whole prompt comes before the `prompt` in `params`',
    }),
  ),
  completion_text: Type.String(),
  finish_reason: nullableText(),
  stop_reason: nullable(Type.Union([Type.String(), Type.Integer()])),
  tool_calls: Type.Array(fields()),
  reasoning_content: nullableText(),
  tools: Type.Array(fields()),
  params: Type.Record(Type.String(), Type.Unknown(), { description: 'The rest of the request' }),
  model: nullableText(),
  engine: nullableText(),
  usage: nullable(fields()),
  annotations: fields(),
  exact: Type.Boolean(),
  inexact_reason: nullableText(),
  weight_version_start: nullableText(),
  weight_version_end: nullableText(),
  started_at: epochS('The call came'),
  first_token_at: nullable(epochS('The first piece of the completion came')),
  ended_at: nullable(epochS('The turn ended')),
  latency_ms: nullable(Type.Number()),
  error: nullable(Type.Object({ code: Type.String(), message: Type.String() })),
  retry_count: Type.Integer(),
}
const turnTokenFields = {
  completion_token_ids: Type.Array(Type.Integer()),
  completion_logprobs: Type.Array(Type.Number()),
  prompt_token_ids: Type.Array(Type.Integer()),
}
export const Turn = Type.Object({ ...turnFields, ...turnTokenFields })

/** A turn as its reader asked for it: with its ids and logprobs, or without them. */
export const ShownTurn = Type.Object({
  ...turnFields,
  ...Type.Partial(Type.Object(turnTokenFields)).properties,
})
const sessionOfTurns = {
  ...sessionFields,
  trace_count: Type.Integer({ description: 'How many of them have been answered' }),
  prompts: Type.Record(Type.String(), Type.Integer(), {
    description: 'How many turns have a prompt that came about in which way; see docs/token-mode.md',
  }),
  changed_calls: Type.Record(Type.String(), Type.Integer(), {
    description: 'How many turns came with calls that their agent had changed in which way',
  }),
}
export const SessionWithTurns = Type.Object({ ...sessionOfTurns, turns: Type.Array(Turn) })
export const ShownSessionWithTurns = Type.Object({ ...sessionOfTurns, turns: Type.Array(ShownTurn) })

const ids = () => Type.Array(Type.Integer())
const perToken = <T extends TSchema>(schema: T, description: string) =>
  Type.Optional(Type.Union([Type.Array(nullable(schema)), Type.Null()], { description }))
const logprobs = () => Type.Array(nullable(Type.Number()))

/** With `details`, those that it names; null: no turn reported it, and in a list: not of this token. */
export const detailFields = {
  sampling_mask: perToken(ids(), 'Per response token: the ids that the sampler left to choose from'),
  sampling_mask_logprobs: perToken(nullable(logprobs()), 'Of each id in `sampling_mask`'),
  sampling_logprobs: perToken(Type.Number(), 'Per response token: normalised over `sampling_mask`'),
  top_logprob_ids: perToken(ids(), 'Per response token: the likeliest ids'),
  top_logprobs: perToken(logprobs(), 'Of each id in `top_logprob_ids`'),
  prompt_logprob_ids: perToken(ids(), 'Per token of prompt and response: its own id, then the likeliest'),
  prompt_logprobs: perToken(logprobs(), 'Of each id in `prompt_logprob_ids`'),
  routed_experts: Type.Optional(
    nullable(
      Type.Object({
        dtype: Type.String({ description: 'Of NumPy, little-endian' }),
        shape: Type.Array(Type.Integer(), { description: 'Tokens of prompt and response first' }),
        known: Type.Array(Type.Array(Type.Integer()), {
          description: 'From which token up to which; zeros elsewhere',
        }),
        data: Type.String({ description: 'base64' }),
      }),
    ),
  ),
  weight_versions: Type.Optional(
    nullable(
      Type.Array(Type.Object({ version: Type.String(), start: Type.Integer(), end: Type.Integer() }), {
        description: 'In response tokens',
      }),
    ),
  ),
}

export const Sampling = Type.Object({
  logprobs_mode: nullable(Type.String({ description: 'What logprobs are of; null: unknown' })),
  values: Type.Record(Type.String(), nullable(Type.Number()), {
    description: 'null: a default that the engine does not tell',
  }),
  from: Type.Record(Type.String(), Type.Enum(['session', 'agent', 'engine'])),
})

const RowImage = Type.Object({
  sha256: Type.String(),
  media_type: Type.String(),
  width: Type.Integer(),
  height: Type.Integer(),
  at: Type.Integer({ description: 'The place of its first token among those of prompt and response' }),
  tokens: Type.Integer(),
})

export const TrajectoryRow = Type.Object({
  line: line(),
  policy: nullableText(),
  finished: Type.Boolean({ description: 'Whether the session was completed; not: aborted, or still active' }),
  prompt_ids: ids(),
  response_ids: ids(),
  response_mask: Type.Array(Type.Enum([0, 1])),
  response_logprobs: Type.Array(Type.Number()),
  turns: Type.Array(
    Type.Object({
      turn_id: Type.String(),
      index: Type.Integer(),
      line: line(),
      policy: nullableText(),
      start: Type.Integer(),
      end: Type.Integer(),
      trained: Type.Boolean(),
      finish_reason: nullableText(),
      weight_version_start: nullableText(),
      weight_version_end: nullableText(),
      sampling: Type.Optional(Sampling),
    }),
  ),
  num_turns: Type.Integer(),
  finish_reason: nullableText(),
  weight_version_min: nullableText(),
  weight_version_max: nullableText(),
  unversioned_turns: Type.Integer(),
  reward: nullable(Type.Number()),
  reward_components: numbers(),
  exact: Type.Boolean(),
  inexact_reason: nullableText(),
  truncated: Type.Boolean(),
  prompt_truncated: Type.Boolean(),
  images: Type.Optional(
    Type.Array(RowImage, { description: 'Images of token mode whose tokens are in the row, in order' }),
  ),
  ...detailFields,
})

export const Trajectories = Type.Object({
  ...sessionFields,
  excluded_turns: Type.Object({
    open: Type.Integer(),
    aborted: Type.Integer(),
    failed: Type.Integer(),
    interrupted: Type.Integer(),
    superseded: Type.Integer(),
    side: Type.Integer(),
    empty: Type.Integer(),
  }),
  trajectories: Type.Array(TrajectoryRow),
  images: Type.Optional(Type.Record(Type.String(), Type.String())),
})
