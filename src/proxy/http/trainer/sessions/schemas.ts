/**
 * Schemas of the sessions API. They validate requests, and the types of handlers and the OpenAPI document are derived
 * from them. Unknown fields and parameters are rejected, so that a typo does not go unnoticed.
 */
import Type from 'typebox'
import { nullable, SINCE, toProperties } from '../../../../protocol/schema/field.ts'
import { withFormerProperties } from '../../../../protocol/schema/former-names.ts'
import { optionalRowFields, rowFields } from '../../../../protocol/schema/row.ts'
import { turnFields, turnTokenFields } from '../../../../protocol/schema/turn.ts'
import { MAX_SESSION_ID_BYTES } from '../../../session/state/session-id.ts'
import { EXCLUSIONS } from '../../../session/trajectories/trajectories.ts'
import { STRICT } from '../../schemas/described.ts'
import { createDetailsParameter } from './detail-schemas.ts'
import { sessionMarkFields, turnMarkFields } from './mark-schemas.ts'

const withDescription = (description?: string) => (description === undefined ? {} : { description })
const fields = (description?: string) =>
  Type.Record(Type.String(), Type.Unknown(), withDescription(description))
const numbers = (description?: string) =>
  Type.Record(Type.String(), Type.Number(), withDescription(description))
const epochS = (description: string) =>
  Type.Number({ description: `${description}; seconds since the epoch` })

export const SessionParams = Type.Object({ sessionId: Type.String() })

const budget = () => Type.Optional(Type.Integer({ minimum: 1 }))
const limitFields = {
  turns: budget(),
  sampled_tokens: budget(),
  prompt_tokens: budget(),
  seconds: Type.Optional(Type.Number({ exclusiveMinimum: 0 })),
  context_tokens: budget(),
  at_limit: Type.Optional(Type.Enum(['stop', 'error'])),
}

const editedCalls = (description: string) =>
  Type.Union([Type.Literal('auto'), Type.Literal('keep'), Type.Literal('branch')], { description })

/** The maximum of `ttl_s`: one hundred years. */
const MAX_TTL_S = 3_153_600_000

const newSessionFields = {
  session_id: Type.Optional(
    Type.String({
      description: `1 to ${MAX_SESSION_ID_BYTES} bytes of any characters that a URL can carry, including slashes`,
    }),
  ),
  metadata: Type.Optional(fields('Any object, of at most 64 KiB as JSON')),
  sampling_params: Type.Optional(fields("Sampling parameters that override the agent's")),
  trust_agent: Type.Optional(
    Type.Boolean({
      description:
        'Whether request metadata that an agent sends with the key of the session, such as a retry count, is trusted; see docs/security.md',
    }),
  ),
  record: Type.Optional(
    Type.Array(Type.String(), {
      description:
        'The data to record beyond ids and logprobs: `sampling_mask`, `top_logprobs:64`, `prompt_logprobs`, ' +
        '`routed_experts`, `weight_versions`; see docs/details.md; absent: the default of the proxy',
    }),
  ),
  policy: Type.Optional(
    Type.Union([Type.String(), Type.Record(Type.String(), Type.String())], {
      description: 'The model or adapter of all requests, or of each agent role; see docs/lines.md',
    }),
  ),
  edited_calls: Type.Optional(
    editedCalls(
      'How to handle tool calls that the agent has changed in its echo: `keep`, `branch` or `auto`; see ' +
        'docs/token-mode.md; absent: the default of the proxy',
    ),
  ),
  continue_responses: Type.Optional(
    Type.Boolean({
      description:
        'Whether a response is continued by another engine request after the first one was cut off; see docs/token-mode.md; absent: the default of the proxy',
    }),
  ),
  limits: Type.Optional(
    Type.Object(limitFields, {
      ...STRICT,
      description:
        'Budgets: `turns`, `sampled_tokens`, `prompt_tokens`, `seconds`, in token mode `context_tokens` of a prompt and its ' +
        'completion, and `at_limit`, `stop` or `error`; absent: the default of the proxy',
    }),
  ),
  ttl_s: Type.Optional(
    Type.Union([Type.Number({ exclusiveMinimum: 0, maximum: MAX_TTL_S }), Type.Null()], {
      description:
        'The session is removed this long after its last change; null: never; absent: the default of the proxy',
    }),
  ),
}
export const RunParams = Type.Object({ run: Type.String() })
export const RunKey = Type.Object({ run: Type.String(), run_key: Type.String() })

export const NewSessionBody = Type.Object(newSessionFields, STRICT)

export const RewardBody = Type.Object(
  withFormerProperties({
    reward: Type.Number(),
    components: Type.Optional(numbers()),
    agent_roles: Type.Optional(
      numbers("Rewards of single agent roles, which replace the session's in their rows"),
    ),
    turns: Type.Optional(numbers('Rewards of single turns, by `index`, `turn_id` or the id of the response')),
  }),
  STRICT,
)

export const BatchDeleteBody = Type.Object(
  {
    session_ids: Type.Optional(Type.Array(Type.String())),
    run: Type.Optional(Type.String({ description: 'All sessions of this run' })),
  },
  { ...STRICT, minProperties: 1 },
)

export const TurnsQuery = Type.Object(
  {
    messages: Type.Optional(
      Type.Enum(['all', 'new', 'none'], {
        description:
          '`new`: only the messages and the part of a prompt that no earlier turn of the response begins with; `none`: no ' +
          'messages, prompts and tools; absent: the default of the proxy (`--turn-messages`), which is `all` if it is not set',
      }),
    ),
    ids: Type.Boolean({ default: true, description: 'Whether to include token ids and logprobs' }),
  },
  STRICT,
)

export const TrajectoriesQuery = Type.Object(
  {
    prompt_length: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Keep the last n prompt tokens, as verl does' }),
    ),
    response_length: Type.Optional(
      Type.Integer({
        minimum: 1,
        description: 'Keep the first n response tokens; a turn that is cut off has `start` = `end`',
      }),
    ),
    select: Type.String({
      default: 'all',
      pattern: '^(all|main|longest|last|policy:.+)$',
      description:
        '`all`; `main`: rows of the main role; `longest`: the longest response that is not truncated; `last`: the leaf with the ' +
        'highest index; `policy:NAME`: train only turns of this policy',
    }),
    side_calls: Type.Boolean({
      default: false,
      description: 'Train side calls, such as the generation of titles, as well; see docs/lines.md',
    }),
    rejected: Type.Boolean({
      default: false,
      description: 'Train compactions that the agent rejected as well; see docs/lines.md',
    }),
    finished_only: Type.Boolean({
      default: false,
      description:
        'Whether to return rows only if the session was completed, not if it was aborted or is still active',
    }),
    per_turn: Type.Boolean({
      default: false,
      description: 'Return one row per turn of these rows, with the complete prompt of the turn',
    }),
    mask_stale_tokens: Type.Boolean({
      default: false,
      description:
        'Mask tokens of unknown weights, and of older weights than the newest that sampled a token of the row; see docs/token-mode.md',
    }),
    images: Type.Boolean({
      default: false,
      description: 'Whether to return `images`: the images of token mode as `data:` URLs by `sha256`',
    }),
    details: createDetailsParameter(),
  },
  STRICT,
)

export const WaitQuery = Type.Object(
  { timeout_s: Type.Number({ minimum: 0, maximum: 600, default: 30 }) },
  STRICT,
)

export const sessionFields = withFormerProperties({
  session_id: Type.String(),
  status: Type.Enum(['active', 'completed', 'aborted']),
  completed: Type.Boolean({ description: 'Whether the status is `completed`' }),
  created_at: epochS('Created'),
  updated_at: epochS('Last change'),
  ended_at: nullable(epochS('When it was completed or aborted; null: it is active')),
  ttl_s: nullable(
    Type.Number({ description: 'The session is removed this long after its last change; null: never' }),
  ),
  metadata: fields('The value that the session was created with'),
  sampling_params: fields('The value that the session was created with'),
  trust_agent: Type.Boolean({ description: 'The value that the session was created with' }),
  record: nullable(
    Type.Array(Type.String(), {
      description: 'The value that it was created with; null: the default of the proxy',
    }),
  ),
  policy: Type.Record(Type.String(), Type.String(), {
    description: 'Models by agent role; `*`: all other roles; empty: the model that the agent requests',
  }),
  edited_calls: nullable(editedCalls('The value that it was created with; null: the default of the proxy')),
  continue_responses: nullable(
    Type.Boolean({ description: 'The value that it was created with; null: the default of the proxy' }),
  ),
  limits: nullable(Type.Object(limitFields, { description: 'Budgets; null: none' })),
  reward: nullable(Type.Number({ description: 'Null until it is set' })),
  reward_components: numbers('Empty until they are set'),
  reward_agent_roles: numbers('Empty until they are set'),
  reward_turns: numbers('By `index`; empty until they are set'),
  ...sessionMarkFields,
  turn_count: Type.Integer({ description: 'The number of turns, whatever their status' }),
  num_turns: Type.Integer({ description: 'The same as `turn_count`' }),
  open_turns: Type.Integer({ description: 'The number of turns in flight' }),
  failed_turns: Type.Integer({
    description: 'The number of turns that failed or were interrupted; aborted turns do not count',
  }),
  inexact_turns: Type.Integer({ description: 'The number of completed turns that cannot be trained on' }),
  sampled_tokens: Type.Integer({ description: 'The number of sampled tokens of all turns' }),
})
export const Session = Type.Object(sessionFields)

export const CreatedSession = Type.Object({
  session_id: Type.String(),
  status: Type.Enum(['created', 'exists']),
  agent_key: Type.Optional(
    Type.String({
      description: "The key of the session's agent, for its LLM requests; only on a proxy with keys",
    }),
  ),
})
/** The response to ending a session. */
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
  deleted: Type.Enum([0, 1], { description: 'The number of deleted sessions' }),
})
export const DeletedSessions = Type.Object({
  deleted: Type.Integer({ description: 'The number of deleted sessions' }),
})
export const WaitedSession = Type.Object({ ...sessionFields, timed_out: Type.Boolean() })

const shownTurnFields = { ...toProperties(turnFields), ...turnMarkFields }
const tokenFields = toProperties(turnTokenFields)
export const Turn = Type.Object({ ...shownTurnFields, ...tokenFields })

/** A turn with ids and logprobs, or without, as requested. */
export const ShownTurn = Type.Object({
  ...shownTurnFields,
  ...Type.Partial(Type.Object(tokenFields)).properties,
})
const sessionOfTurns = {
  ...sessionFields,
  trace_count: Type.Integer({ description: 'The number of completed turns' }),
  prompts: Type.Record(Type.String(), Type.Integer(), {
    description: 'The number of turns by the way their prompt was built; see docs/token-mode.md',
  }),
  changed_calls: Type.Record(Type.String(), Type.Integer(), {
    description: 'The number of turns by the kind of change that their agent made to tool calls',
  }),
  aborted_turns: Type.Integer({
    description: 'The number of turns whose agent disconnected, or that the end of the session cancelled',
    [SINCE]: '0.2.0',
  }),
}
export const SessionWithTurns = Type.Object({ ...sessionOfTurns, turns: Type.Array(Turn) })
export const ShownSessionWithTurns = Type.Object({ ...sessionOfTurns, turns: Type.Array(ShownTurn) })

export const TrajectoryRow = Type.Object(toProperties({ ...rowFields, ...optionalRowFields }))

export const Trajectories = Type.Object({
  ...sessionFields,
  excluded_turns: Type.Record(Type.Enum([...EXCLUSIONS]), Type.Integer()),
  trajectories: Type.Array(TrajectoryRow),
  images: Type.Optional(Type.Record(Type.String(), Type.String())),
})
