/** Schemas of the read-only routes; see `sessions/schemas.ts`. */
import Type from 'typebox'
import { NEW_ROW_REASONS } from '../../../session/trajectories/new-rows.ts'
import { EXCLUSIONS } from '../../../session/trajectories/trajectories.ts'
import { MIN_SEARCHED_CHARS } from '../../../store/port/turn-search.ts'
import { nullable, STRICT } from '../../schemas/described.ts'
import { detailFields } from '../sessions/detail-schemas.ts'
import { turnMarkFields } from '../sessions/mark-schemas.ts'
import {
  Session,
  sessionFields,
  Trajectories,
  TrajectoriesQuery,
  TrajectoryRow,
} from '../sessions/schemas.ts'

const nullableText = () => nullable(Type.String())
const nullableNumber = () => nullable(Type.Number())
const count = (description: string) => Type.Integer({ description })

const filterFields = {
  run: Type.Optional(
    Type.String({ description: 'Only sessions of this run, whose ids begin with `runs/{run}/`' }),
  ),
  status: Type.Optional(Type.Enum(['active', 'completed', 'aborted'])),
  since: Type.Optional(
    Type.Number({ description: 'Only sessions that changed then or later; seconds since the epoch' }),
  ),
  label: Type.Optional(Type.String({ description: 'A label of the session, or of one of its turns' })),
  q: Type.Optional(
    Type.String({ description: 'Part of the id, of a metadata value, a label or a note, in whatever case' }),
  ),
  reward_min: Type.Optional(Type.Number()),
  reward_max: Type.Optional(Type.Number()),
  inexact: Type.Optional(Type.Boolean({ description: 'Has inexact turns, or has none' })),
  failed: Type.Optional(Type.Boolean({ description: 'Has failed or interrupted turns, or has none' })),
}
const METADATA = { patternProperties: { '^metadata\\..+$': Type.String() } }

export const ListQuery = Type.Object(
  {
    limit: Type.Integer({ minimum: 1, maximum: 1000, default: 100 }),
    cursor: Type.Optional(Type.String({ description: '`next_cursor` of the page before' })),
    sort: Type.Enum(['created', 'changed', 'reward', 'turns', 'tokens'], { default: 'created' }),
    order: Type.Enum(['desc', 'asc'], { default: 'desc' }),
    totals: Type.Boolean({ default: false, description: 'Count all sessions that match, on every page' }),
    ...filterFields,
  },
  { ...STRICT, ...METADATA },
)

export const GroupsQuery = Type.Object(
  {
    by: Type.String({ minLength: 1, description: 'A metadata key' }),
    limit: Type.Integer({ minimum: 1, maximum: 100_000, default: 1000 }),
    pass_reward: Type.Optional(
      Type.Number({ description: 'Rewards of at least this pass; the answer then has `pass_at`' }),
    ),
    turns: Type.Boolean({
      default: false,
      description: 'Groups have `of_turns`: rows, truncation, staleness',
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
      description: 'What to look for, in whatever case',
    }),
    limit: Type.Integer({ minimum: 1, maximum: 500, default: 100 }),
    per_session: Type.Integer({
      minimum: 1,
      maximum: 500,
      default: 3,
      description: 'Hits of one session on a page',
    }),
    cursor: Type.Optional(Type.String({ description: '`next_cursor` of the page before' })),
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
      index: count('Of the turn in its session'),
      started_at: Type.Number({ description: 'Of the turn; seconds since the epoch' }),
      found_in: Type.Enum(['completion', 'request'], {
        description: 'What was sampled, or what the request adds to the turns before',
      }),
      before: Type.String(),
      match: Type.String(),
      after: Type.String(),
    }),
  ),
  next_cursor: nullable(
    Type.String({
      description: 'Also where the time for one page was over; null: every turn has been looked at',
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
      leaf: nullable(Type.Integer({ description: 'The node that it ends with; null: it has no tokens' })),
      prompt_tokens: count('How many tokens from the root on are its prompt'),
      response_tokens: Type.Integer(),
    }),
  ),
  nodes: Type.Array(
    Type.Object({
      parent: nullable(Type.Integer({ description: 'Its place in this list, before this one' })),
      ids: prompt_ids,
      session_id: Type.Optional(Type.String({ description: 'Of sampled tokens, as all below' })),
      ...Type.Partial(Type.Object({ ...turnFields, ...detailFields })).properties,
      logprobs: Type.Optional(
        Type.Array(Type.Number(), { description: 'As many as ids; 0.0 if no row trains them' }),
      ),
    }),
  ),
})

const rewardFields = {
  count: count('Sessions that have a reward'),
  mean: nullableNumber(),
  std: nullable(Type.Number({ description: 'Of the sample: divided by n - 1' })),
  min: nullableNumber(),
  max: nullableNumber(),
}
/** The counts of groups and totals; each is a sum over sessions. */
const countFields = {
  sessions: Type.Integer(),
  active: Type.Integer(),
  completed: Type.Integer(),
  aborted: Type.Integer(),
  failed: count('Sessions with failed or interrupted turns'),
  inexact: count('Sessions with inexact turns'),
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
  passed: Type.Optional(count('With `pass_reward`: how many rewards pass')),
  zero_variance: Type.Boolean({ description: 'Two rewards or more, all equal: nothing to learn from' }),
  created_at: Type.Number({ description: 'Of its first session; seconds since the epoch' }),
  reward_components: Type.Record(Type.String(), Type.Number(), {
    description: 'Their means, of the sessions that have them',
  }),
  of_turns: Type.Optional(
    nullable(
      Type.Object({
        sessions: count('How many were looked at: the latest ones, at most 16'),
        rows: Type.Integer(),
        turns: Type.Integer(),
        truncated: count('Turns that were cut by length or by the engine'),
        staleness: nullableNumber(),
      }),
    ),
  ),
})
export const Groups = Type.Object({
  by: Type.String(),
  groups: Type.Array(Group),
  total: count('How many groups there are'),
  pass_at: Type.Optional(
    Type.Record(Type.String(), Type.Number(), {
      description: 'With `pass_reward`: by k, how often one of k samples passes, over all groups',
    }),
  ),
})

export const TreeTurn = Type.Object({
  index: Type.Integer(),
  line: Type.String(),
  status: Type.Enum(['open', 'completed', 'aborted', 'failed', 'interrupted']),
  parent: nullable(
    Type.Integer({
      description:
        'Index of the turn that it follows in a row; if it begins one, of an earlier turn that its prompt begins ' +
        'like; null: none, or fewer than 8 tokens',
    }),
  ),
  shared_tokens: count("How many tokens of the prompt are those of its parent's prompt and completion"),
  continues: Type.Boolean({ description: 'It follows its parent in a row' }),
  message_parent: nullable(
    Type.Integer({
      description: 'Index of the turn that it continues by its messages; null: it begins a conversation',
    }),
  ),
  new_row: nullable(
    Type.Object(
      {
        why: Type.Enum([...NEW_ROW_REASONS]),
        turn: nullable(Type.Integer({ description: 'Index of the turn that it could have gone on from' })),
        text: Type.String({ description: 'For people' }),
        split: Type.Boolean({ description: 'It splits what could be one row' }),
        changes: Type.Array(
          Type.Object({
            what: Type.String(),
            before: nullableText(),
            now: nullableText(),
          }),
          { description: 'What the agent changed, in parts; null: there was nothing' },
        ),
      },
      {
        description:
          'Why it begins a row: `why`, `turn` that it could have gone on from, `text` for people, `split`: it could have ' +
          'been one row with it, `changes`: what the agent changed, `before` and `now`; null: it begins none',
      },
    ),
  ),
  excluded: nullable(
    Type.Enum([...EXCLUSIONS], {
      description: 'Why no row has it, as in `excluded_turns` of trajectories; null: one has',
    }),
  ),
  prompt_tokens: Type.Integer(),
  sampled_tokens: Type.Integer(),
  prompt_reason: nullable(Type.String({ description: 'How the prompt came about; see docs/token-mode.md' })),
  changed_calls: Type.Array(Type.String(), {
    description: 'What the agent changed in the calls that it was given; see docs/token-mode.md',
  }),
  started_at: Type.Number({ description: 'Seconds since the epoch' }),
  first_token_ms: nullable(
    Type.Number({ description: 'After `started_at`, the wait in the queue included' }),
  ),
  duration_ms: nullable(Type.Number({ description: 'After `started_at`, as above' })),
  finish_reason: nullableText(),
  exact: Type.Boolean(),
  inexact_reason: nullableText(),
  weight_version_start: nullableText(),
  weight_version_end: nullableText(),
  retry_count: Type.Integer(),
  error: nullable(Type.Object({ code: Type.String(), message: Type.String() })),
  ...turnMarkFields,
})
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
    ids: Type.Boolean({ default: false, description: 'Token ids and logprobs as well' }),
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
      description: 'The text of each token as well, where a tokenizer is known',
    }),
  },
  STRICT,
)

export const RowSummary = Type.Object({
  row: count('Its place in `trajectories`'),
  prompt_tokens: Type.Integer(),
  response_tokens: Type.Integer(),
  trained_tokens: count('Those with mask 1'),
  mean_logprob: nullable(Type.Number({ description: 'Of the trained tokens' })),
  min_logprob: nullableNumber(),
})
export const Rows = Type.Object({ rows: Type.Array(RowSummary) })

export const TokenTexts = Type.Object({
  source: nullable(Type.String({ description: 'The tokenizer; null: none is known for the model' })),
  texts: nullable(Type.Array(Type.String({ description: 'What each token adds to the text' }))),
})

export const AlternativesQuery = Type.Object(
  {
    ...rowsQuery,
    from: Type.Integer({ minimum: 0, default: 0, description: 'First token, of prompt and response' }),
    count: Type.Integer({ minimum: 1, maximum: 256, default: 64, description: 'How many tokens' }),
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
          text: nullable(Type.String({ description: 'null: no tokenizer is known for the model' })),
        }),
      ),
    ),
    {
      description:
        "For each token, in the engine's order; null: none on record, or the row does not train it",
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
  text: Type.Optional(Type.String({ description: 'What has come since the line before' })),
  reasoning: Type.Optional(Type.String({ description: 'As `text`' })),
  tool_calls: Type.Optional(Type.Array(Type.Unknown(), { description: 'All of them so far' })),
})
