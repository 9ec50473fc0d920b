/** Schemas of the routes for consumers; see `../sessions/schemas.ts`. */
import Type from 'typebox'
import { nullable } from '../../../../protocol/schema/field.ts'
import { DEFAULT_GROUP_TIMEOUT_MS } from '../../../store/port/consumers.ts'
import { STRICT } from '../../schemas/described.ts'
import { Trajectories, TrajectoriesQuery } from '../sessions/schemas.ts'

/** The default of `hold_s`: one week. */
const HOLD_S = 604_800
/** The default of `lease_s`: half an hour. */
const LEASE_S = 1_800
/** The maximum of durations: one year. */
const MAX_S = 31_536_000
/** The maximum of `since`: the last second of the year 9999. */
const MAX_SINCE_S = 253_402_300_799
const Plain = Type.Union([Type.String(), Type.Number(), Type.Boolean()])

export const ConsumerParams = Type.Object({
  consumer: Type.String({
    pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$',
    description: '1 to 128 letters, digits, dots, hyphens or underscores',
  }),
})

export const RunQuery = Type.Object(
  {
    run: Type.Optional(Type.String({ description: 'The run that the consumer and its sessions belong to' })),
  },
  STRICT,
)

export const NewConsumerBody = Type.Object(
  {
    metadata: Type.Optional(
      Type.Record(Type.String(), Plain, {
        description: 'Only sessions whose metadata contains all of these values',
      }),
    ),
    group_by: Type.Optional(
      nullable(
        Type.String({
          minLength: 1,
          description:
            'Sessions with equal values of this metadata key are fetched as a group; null: each session is fetched alone',
        }),
      ),
    ),
    group_size: Type.Integer({
      ...{ minimum: 1, maximum: 1024, default: 1 },
      description: 'The number of completed sessions of a group',
    }),
    group_timeout_s: Type.Number({
      ...{ minimum: 0, maximum: MAX_S, default: DEFAULT_GROUP_TIMEOUT_MS / 1_000 },
      description: 'An incomplete group is discarded this long after the last of its sessions ended',
    }),
    rewarded: Type.Boolean({ default: false, description: 'Only sessions with a reward' }),
    since: Type.Number({
      ...{ minimum: 0, maximum: MAX_SINCE_S, default: 0 },
      description: 'Only sessions that ended at this time or later; used only when the consumer is created',
    }),
    hold_s: Type.Number({
      ...{ minimum: 0, maximum: MAX_S, default: HOLD_S },
      description:
        'A session that is not acknowledged is kept beyond its time to live, at most this long after its end',
    }),
  },
  STRICT,
)

const consumerFields = {
  consumer: Type.String(),
  run: nullable(Type.String()),
  metadata: Type.Record(Type.String(), Plain),
  group_by: nullable(Type.String()),
  group_size: Type.Integer(),
  group_timeout_s: Type.Number(),
  rewarded: Type.Boolean(),
  since: Type.Number(),
  hold_s: Type.Number(),
  created_at: Type.Number({ description: 'Seconds since the epoch' }),
}
export const CreatedConsumer = Type.Object({
  ...consumerFields,
  status: Type.Enum(['created', 'exists']),
})
export const ConsumerList = Type.Object({ consumers: Type.Array(Type.Object(consumerFields)) })
export const CountedConsumer = Type.Object({
  ...consumerFields,
  available: Type.Integer({ description: 'Completed sessions that are neither leased nor acknowledged' }),
  leased: Type.Integer(),
  acknowledged: Type.Integer({
    description: 'Includes sessions that its metadata filter excludes',
  }),
  discarded: Type.Integer({
    description: 'The number of `acknowledged` sessions that belong to groups that stayed incomplete',
  }),
})
export const DeletedConsumer = Type.Object({
  consumer: Type.String(),
  status: Type.Enum(['deleted', 'not_found']),
})

const leaseS = Type.Number({
  ...{ minimum: 0.001, maximum: MAX_S, default: LEASE_S },
  description: 'The duration of the lease, during which no other process can fetch the sessions',
})
const leaseId = Type.String({ minLength: 1, maxLength: 128 })

export const FetchBody = Type.Object(
  {
    limit: Type.Integer({
      ...{ minimum: 1, maximum: 1024, default: 1 },
      description: 'The maximum number of sessions, or groups',
    }),
    wait_s: Type.Number({
      minimum: 0,
      maximum: 600,
      default: 0,
      description: 'The maximum time to wait for the first session or group',
    }),
    lease_s: leaseS,
    lease_id: Type.Optional({
      ...leaseId,
      description:
        'A name for the lease; a later fetch with the same name returns its sessions again before new ones',
    }),
    min_weight_version: Type.Optional(
      Type.Number({
        description:
          'Sessions and groups with a token of an older or unknown version are discarded (acknowledged)',
      }),
    ),
    ...TrajectoriesQuery.properties,
  },
  STRICT,
)

export const Fetched = Type.Object({
  lease_id: Type.String(),
  sessions: Type.Array(
    Type.Object({
      ...Trajectories.properties,
      deliveries: Type.Integer({ description: 'How often the session was leased, including this time' }),
    }),
    { description: 'The same as for trajectories; the sessions of a group are consecutive' },
  ),
  discarded: Type.Object(
    { stale: Type.Integer(), unversioned: Type.Integer() },
    { description: 'The sessions that `min_weight_version` excluded, by reason' },
  ),
  incomplete: Type.Integer({
    description: 'The sessions of groups that stayed incomplete, which are also discarded',
  }),
  damaged: Type.Integer({
    description: 'The sessions with damaged data, and the others of their groups, which are also discarded',
  }),
})

const sessionIds = Type.Optional(
  Type.Array(Type.String(), { description: 'Absent: all sessions of the lease' }),
)
export const AckBody = Type.Object({ lease_id: leaseId, session_ids: sessionIds }, STRICT)
export const ExtendBody = Type.Object({ lease_id: leaseId, session_ids: sessionIds, lease_s: leaseS }, STRICT)
export const ReleaseBody = Type.Object(
  {
    lease_id: Type.Optional({ ...leaseId, description: 'Absent: all leases of the consumer' }),
    session_ids: sessionIds,
  },
  STRICT,
)

const ids = (description: string) => Type.Array(Type.String(), { description })
const lost = ids(
  'The `session_ids` that another lease contains since this one expired, or that were removed or reset',
)
export const Acknowledged = Type.Object({ acknowledged: ids('Never returned by a later fetch'), lost })
export const Extended = Type.Object({ extended: ids('Until `lease_s` from now'), lost })
export const Released = Type.Object({ released: ids('Returned by the next fetch'), lost })
