/** Schemas of the read-only routes; see `sessions/schemas.ts`. */
import Type from 'typebox'
import { nullable, toProperties } from '../../../../protocol/schema/field.ts'
import { withFormerProperties } from '../../../../protocol/schema/former-names.ts'
import { rowDetailFields } from '../../../../protocol/schema/row-details.ts'
import { NEW_ROW_REASONS } from '../../../session/trajectories/new-rows.ts'
import { EXCLUSIONS } from '../../../session/trajectories/trajectories.ts'
import { MIN_SEARCHED_CHARS } from '../../../store/port/turn-search.ts'
import { STRICT } from '../../schemas/described.ts'
import { turnMarkFields } from './mark-schemas.ts'
import { Session, sessionFields, Trajectories, TrajectoriesQuery, TrajectoryRow } from './schemas.ts'

const nullableText = () => nullable(Type.String())
const nullableNumber = () => nullable(Type.Number())
const count = (description: string) => Type.Integer({ description })

const filterFields = {
  run: Type.Optional(
    Type.String({ description: 'Only sessions of this run: their ids begin with `runs/{run}/`' }),
  ),
  status: Type.Optional(Type.Enum(['active', 'completed', 'aborted'])),
  since: Type.Optional(
    Type.Number({
      description: 'Only sessions that changed at this time or later; seconds since the epoch',
    }),
  ),
  label: Type.Optional(Type.String({ description: 'A label of the session, or of one of its turns' })),
  q: Type.Optional(
    Type.String({
      description: 'A substring of the id, a metadata value, a label or a note; case-insensitive',
    }),
  ),
  reward_min: Type.Optional(Type.Number()),
  reward_max: Type.Optional(Type.Number()),
  inexact: Type.Optional(
    Type.Boolean({ description: 'Only sessions with inexact turns, or only sessions without' }),
  ),
  failed: Type.Optional(
    Type.Boolean({ description: 'Only sessions with failed or interrupted turns, or only sessions without' }),
  ),
}
const METADATA = { patternProperties: { '^metadata\\..+$': Type.String() } }

export const ListQuery = Type.Object(
  {
    limit: Type.Integer({ minimum: 1, maximum: 1000, default: 100 }),
    cursor: Type.Optional(Type.String({ description: '`next_cursor` of the previous page' })),
    sort: Type.Enum(['created', 'changed', 'reward', 'turns', 'tokens'], { default: 'created' }),
    order: Type.Enum(['desc', 'asc'], { default: 'desc' }),
    totals: Type.Boolean({
      default: false,
      description: 'Whether to count all matching sessions, on every page',
    }),
    ...filterFields,
  },
  { ...STRICT, ...METADATA },
)

export const GroupsQuery = Type.Object(
  {
    by: Type.String({ minLength: 1, description: 'A metadata key' }),
    limit: Type.Integer({ minimum: 1, maximum: 100_000, default: 1000 }),
    pass_reward: Type.Optional(
      Type.Number({ description: 'Rewards of at least this value pass; the response then has `pass_at`' }),
    ),
    turns: Type.Boolean({
      default: false,
      description: 'Whether groups have `of_turns`: rows, truncation, staleness',
    }),
    ...filterFields,
  },
  { ...STRICT, ...METADATA },
)

export const SearchQuery = Type.Object(
  {
    text: Type.String({
      minLength: MIN_SEARCHED_CHARS,
      maxLength: 1000,
      description: 'The text to find; case-insensitive',
    }),
    limit: Type.Integer({ minimum: 1, maximum: 500, default: 100 }),
    per_session: Type.Integer({
      minimum: 1,
      maximum: 500,
      default: 3,
      description: 'The maximum number of hits of one session on a page',
    }),
    cursor: Type.Optional(Type.String({ description: '`next_cursor` of the previous page' })),
    ...filterFields,
  },
  { ...STRICT, ...METADATA },
)

export const SearchHits = Type.Object({
  hits: Type.Array(
    Type.Object({
      session_id: Type.String(),
      status: Type.Enum(['active', 'completed', 'aborted']),
      reward: nullableNumber(),
      turn_id: Type.String(),
      index: count('The index of the turn in its session'),
      started_at: Type.Number({ description: 'The start of the turn; seconds since the epoch' }),
      found_in: Type.Enum(['completion', 'request'], {
        description: 'The completion, or the new part of the request',
      }),
      before: Type.String(),
      match: Type.String(),
      after: Type.String(),
    }),
  ),
  next_cursor: nullable(
    Type.String({
      description: 'Also set if the time limit of a page was reached; null: all turns have been searched',
    }),
  ),
})

const forestFields = {
  side_calls: TrajectoriesQuery.properties.side_calls,
  rejected: TrajectoriesQuery.properties.rejected,
  details: TrajectoriesQuery.properties.details,
}

export const SessionForestQuery = Type.Object(forestFields, STRICT)

export const ForestQuery = Type.Object({ ...forestFields, ...filterFields }, { ...STRICT, ...METADATA })

const { prompt_ids, response_ids, response_mask, response_logprobs, ...rowFields } = TrajectoryRow.properties
const { start, end, ...turnFields } = rowFields.turns.items.properties

export const TokenForest = Type.Object({
  sessions: Type.Array(
    Type.Object({ ...sessionFields, excluded_turns: Trajectories.properties.excluded_turns }),
  ),
  rows: Type.Array(
    Type.Object({
      session_id: Type.String(),
      ...rowFields,
      leaf: nullable(Type.Integer({ description: 'The last node of the row; null: it has no tokens' })),
      prompt_tokens: count('The number of tokens from the root that are its prompt'),
      response_tokens: Type.Integer(),
    }),
  ),
  nodes: Type.Array(
    Type.Object({
      parent: nullable(
        Type.Integer({ description: 'The index of the parent in this list, which precedes this node' }),
      ),
      ids: prompt_ids,
      session_id: Type.Optional(
        Type.String({ description: 'Present for sampled tokens only, as all fields below' }),
      ),
      ...Type.Partial(Type.Object({ ...turnFields, ...toProperties(rowDetailFields) })).properties,
      logprobs: Type.Optional(
        Type.Array(Type.Number(), { description: 'One per id; 0.0 if no row trains the tokens' }),
      ),
    }),
  ),
})

const rewardFields = {
  count: count('The number of sessions with a reward'),
  mean: nullableNumber(),
  std: nullable(Type.Number({ description: 'The sample standard deviation (divided by n - 1)' })),
  min: nullableNumber(),
  max: nullableNumber(),
}
/** The counts of groups and totals, which are sums over sessions. */
const countFields = {
  sessions: Type.Integer(),
  active: Type.Integer(),
  completed: Type.Integer(),
  aborted: Type.Integer(),
  failed: count('The number of sessions with failed or interrupted turns'),
  inexact: count('The number of sessions with inexact turns'),
  turns: Type.Integer(),
  sampled_tokens: Type.Integer(),
}
export const Totals = Type.Object({
  ...countFields,
  rewards: Type.Object({
    ...rewardFields,
    histogram: Type.Array(Type.Object({ from: Type.Number(), to: Type.Number(), count: Type.Integer() })),
  }),
})

export const SessionList = Type.Object({
  sessions: Type.Array(Session),
  next_cursor: nullableText(),
  totals: Type.Optional(Totals),
})

export const Group = Type.Object({
  value: Type.Union([Type.String(), Type.Number(), Type.Boolean()]),
  ...countFields,
  rewards: Type.Object(rewardFields),
  passed: Type.Optional(count('With `pass_reward`: the number of rewards that pass')),
  zero_variance: Type.Boolean({
    description: 'Whether there are two or more rewards and all are equal, so that their advantages are 0',
  }),
  created_at: Type.Number({ description: 'The creation time of its first session; seconds since the epoch' }),
  reward_components: Type.Record(Type.String(), Type.Number(), {
    description: 'The mean of each component over the sessions that have it',
  }),
  of_turns: Type.Optional(
    nullable(
      Type.Object({
        sessions: count('The number of sessions that were read: the latest ones, at most 16'),
        rows: Type.Integer(),
        turns: Type.Integer(),
        truncated: count('The number of turns that were truncated by length or by the engine'),
        staleness: nullableNumber(),
      }),
    ),
  ),
})
export const Groups = Type.Object({
  by: Type.String(),
  groups: Type.Array(Group),
  total: count('The number of groups'),
  pass_at: Type.Optional(
    Type.Record(Type.String(), Type.Number(), {
      description: 'With `pass_reward`: pass@k over all groups, by k',
    }),
  ),
})

export const TreeTurn = Type.Object(
  withFormerProperties({
    index: Type.Integer(),
    agent_role: Type.String(),
    status: Type.Enum(['open', 'completed', 'aborted', 'failed', 'interrupted']),
    parent: nullable(
      Type.Integer({
        description:
          'The index of the turn that it continues in a row; if it begins a row, the index of an earlier turn that shares a ' +
          'prefix of at least 8 tokens with its prompt; null: there is none',
      }),
    ),
    shared_tokens: count(
      'The length of the prefix that its prompt shares with the prompt and completion of its parent, in tokens',
    ),
    continues: Type.Boolean({ description: 'Whether it continues its parent in a row' }),
    message_parent: nullable(
      Type.Integer({
        description: 'The index of the turn that its messages continue; null: it begins a conversation',
      }),
    ),
    new_row: nullable(
      Type.Object(
        {
          why: Type.Enum([...NEW_ROW_REASONS]),
          turn: nullable(Type.Integer({ description: 'The index of the turn that it could have continued' })),
          text: Type.String({ description: 'A description for people' }),
          split: Type.Boolean({ description: 'Whether the turn could have been in one row with `turn`' }),
          changes: Type.Array(
            Type.Object({
              what: Type.String(),
              before: nullableText(),
              now: nullableText(),
            }),
            { description: 'The parts that the agent changed; null: absent' },
          ),
        },
        {
          description:
            'Why it begins a row: `why`, the `turn` that it could have continued, `text` for people, `split`: it could have ' +
            'been one row with it, `changes`: the parts that the agent changed, `before` and `now`; null: it begins no row',
        },
      ),
    ),
    excluded: nullable(
      Type.Enum([...EXCLUSIONS], {
        description: 'Why no row contains it, as in `excluded_turns` of trajectories; null: a row does',
      }),
    ),
    prompt_tokens: Type.Integer(),
    sampled_tokens: Type.Integer(),
    prompt_reason: nullable(Type.String({ description: 'How the prompt was built; see docs/token-mode.md' })),
    changed_calls: Type.Array(Type.String(), {
      description: 'The kinds of changes that the agent made to its tool calls; see docs/token-mode.md',
    }),
    special_tokens: Type.Array(Type.String(), {
      description: 'The special tokens that texts of its new messages contain, in token mode',
    }),
    started_at: Type.Number({ description: 'Seconds since the epoch' }),
    first_token_ms: nullable(
      Type.Number({ description: 'The time from `started_at` to the first token, including the queue wait' }),
    ),
    duration_ms: nullable(
      Type.Number({ description: 'The time from `started_at` to the end, including the queue wait' }),
    ),
    finish_reason: nullableText(),
    exact: Type.Boolean(),
    inexact_reason: nullableText(),
    weight_version_start: nullableText(),
    weight_version_end: nullableText(),
    retry_count: Type.Integer(),
    error: nullable(Type.Object({ code: Type.String(), message: Type.String() })),
    ...turnMarkFields,
  }),
)
export const Tree = Type.Object({ ...sessionFields, turns: Type.Array(TreeTurn) })

export const Preview = Type.Object({ task: nullableText(), answer: nullableText() })

export const TurnParams = Type.Object({
  sessionId: Type.String(),
  index: Type.String({ pattern: '^\\d{1,9}$' }),
})
export const OneTurnQuery = Type.Object(
  {
    messages: Type.Enum(['new', 'all'], {
      default: 'new',
      description: "`new`: only the messages that no earlier turn's request begins with",
    }),
    ids: Type.Boolean({ default: false, description: 'Whether to include token ids and logprobs' }),
  },
  STRICT,
)

export const RowParams = Type.Object({
  sessionId: Type.String(),
  row: Type.String({ pattern: '^\\d{1,9}$' }),
})
const rowsQuery = { side_calls: Type.Boolean({ default: false }) }
export const RowsQuery = Type.Object(rowsQuery, STRICT)
export const TokensQuery = Type.Object(
  {
    ...rowsQuery,
    texts: Type.Boolean({
      default: false,
      description: 'Whether to include the text of each token, if a tokenizer is available',
    }),
  },
  STRICT,
)

export const RowSummary = Type.Object({
  row: count('The index of the row in `trajectories`'),
  prompt_tokens: Type.Integer(),
  response_tokens: Type.Integer(),
  trained_tokens: count('The number of tokens with mask 1'),
  mean_logprob: nullable(Type.Number({ description: 'The mean over the trained tokens' })),
  min_logprob: nullableNumber(),
})
export const Rows = Type.Object({ rows: Type.Array(RowSummary) })

export const TokenTexts = Type.Object({
  source: nullable(Type.String({ description: 'The tokenizer; null: none is available for the model' })),
  texts: nullable(
    Type.Array(Type.String({ description: 'The text that the token adds to those before it' })),
  ),
})

export const AlternativesQuery = Type.Object(
  {
    ...rowsQuery,
    from: Type.Integer({
      minimum: 0,
      default: 0,
      description: 'The index of the first token in prompt and response',
    }),
    count: Type.Integer({ minimum: 1, maximum: 256, default: 64, description: 'The number of tokens' }),
  },
  STRICT,
)
export const Alternatives = Type.Object({
  from: Type.Integer(),
  alternatives: Type.Array(
    nullable(
      Type.Array(
        Type.Object({
          id: Type.Integer(),
          logprob: nullableNumber(),
          text: nullable(Type.String({ description: 'null: no tokenizer is available for the model' })),
        }),
      ),
    ),
    {
      description: "For each token, in the engine's order; null: not recorded, or the row does not train it",
    },
  ),
})

const at = Type.Number({ description: 'Seconds since the epoch' })
export const ProxyEvent = Type.Object({
  type: Type.Enum([
    'session_opened',
    'session_ended',
    'session_reset',
    'session_deleted',
    'reward',
    'session_marked',
    'turn_opened',
    'turn_closed',
    'member_up',
    'member_down',
    'member_left',
    'paused',
    'resumed',
    'ping',
  ]),
  at,
  session_id: Type.Optional(Type.String()),
  index: Type.Optional(Type.Integer()),
  status: Type.Optional(Type.String()),
  finish_reason: Type.Optional(nullableText()),
  reward: Type.Optional(Type.Number()),
  member: Type.Optional(Type.String()),
})
export const LiveEvent = Type.Object({
  type: Type.Enum(['turn', 'delta', 'turn_closed', 'ping']),
  at,
  index: Type.Optional(Type.Integer()),
  started_at: Type.Optional(Type.Number()),
  text: Type.Optional(Type.String({ description: 'The text since the previous line' })),
  reasoning: Type.Optional(Type.String({ description: 'The reasoning since the previous line' })),
  tool_calls: Type.Optional(Type.Array(Type.Unknown(), { description: 'All tool calls so far' })),
})
