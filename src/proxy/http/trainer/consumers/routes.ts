/** Routes for consumers, through which a trainer fetches and acknowledges completed sessions. */
import { randomUUID } from 'node:crypto'
import type { FastifyPluginCallback } from 'fastify'
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import { logEvent } from '../../../../base/log-events.ts'
import type { Logger } from '../../../../base/logger.ts'
import type { Consumers } from '../../../session/consumers/consumers.ts'
import { getRunIdPrefix } from '../../../session/state/session-id.ts'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { Consumer } from '../../../store/port/consumers.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { type Caller, getRequestedRun } from '../../access/scopes.ts'
import { describe } from '../../schemas/described.ts'
import { type SchemaApp, toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import { createDisconnectSignal } from '../../transport/on-close.ts'
import { streamJson } from '../sessions/json-stream.ts'
import { ConsumerFetch } from './fetch.ts'
import * as schemas from './schemas.ts'

interface ConsumerRoutesOptions {
  consumers: Consumers
  reader: TurnReader
  logger: Logger
  /** Called with each row that is read. */
  onRow: (row: Trajectory) => void
}

export const consumerRoutes: FastifyPluginCallback<ConsumerRoutesOptions> = (plain, options, done) => {
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)
  namedRoutes(app, options)
  fetchRoute(app, options)
  leaseRoutes(app, options)
  done()
}

const ACCEPTS_RUN_KEYS = { acceptsRunKeys: true } as const
const VIEWED = { acceptsRunKeys: true, scope: 'view' } as const
const NAMED = { params: schemas.ConsumerParams, querystring: schemas.RunQuery }

/** The parts of a request that identify a consumer. */
interface ConsumerRequest {
  params: Static<typeof schemas.ConsumerParams>
  query: Static<typeof schemas.RunQuery>
  caller: Caller
}

/**
 * Returns the prefix of the consumers and sessions of the run to which a request is restricted; empty: no run.
 * @throws ProxyError `forbidden`, `invalid_request`
 */
function getNamePrefix({ query, caller }: Pick<ConsumerRequest, 'query' | 'caller'>): string {
  const run = getRequestedRun(caller, query.run)
  return run === undefined ? '' : getRunIdPrefix(run)
}

/** Returns the stored name of a consumer. The consumers of a run have a separate namespace. */
function getConsumerName(request: ConsumerRequest): string {
  return getNamePrefix(request) + request.params.consumer
}

function namedRoutes(app: SchemaApp, { consumers }: ConsumerRoutesOptions): void {
  app.get(
    '/consumers',
    {
      config: VIEWED,
      ...describe('consumers', 'List consumers', schemas.ConsumerList, { querystring: schemas.RunQuery }),
    },
    async (request) => ({ consumers: (await consumers.list(getNamePrefix(request))).map(consumerToWire) }),
  )
  app.post(
    '/consumers/:consumer',
    {
      config: ACCEPTS_RUN_KEYS,
      ...describe('consumers', 'Create a consumer, or return the existing one', schemas.CreatedConsumer, {
        ...NAMED,
        body: schemas.NewConsumerBody,
      }),
    },
    async (request) => {
      const {
        metadata = {},
        group_by: groupBy = null,
        group_size: groupSize,
        group_timeout_s,
        rewarded,
        since,
        hold_s,
      } = request.body
      if (groupBy === null && groupSize > 1)
        throw new ProxyError('invalid_request', 'A group_size needs a group_by', { param: 'group_size' })
      const { created, consumer } = await consumers.create({
        name: getConsumerName(request),
        idPrefix: getNamePrefix(request),
        sinceMs: Math.round(since * 1_000),
        holdMs: Math.round(hold_s * 1_000),
        selection: {
          metadata,
          groupBy,
          groupSize,
          groupTimeoutMs: Math.round(group_timeout_s * 1_000),
          rewarded,
        },
      })
      return { ...consumerToWire(consumer), status: created ? 'created' : 'exists' }
    },
  )
  app.get(
    '/consumers/:consumer',
    {
      config: VIEWED,
      ...describe('consumers', 'Read a consumer with its counts', schemas.CountedConsumer, NAMED),
    },
    async (request) => {
      const name = getConsumerName(request)
      return { ...consumerToWire(await consumers.get(name)), ...(await consumers.count(name)) }
    },
  )
  app.delete(
    '/consumers/:consumer',
    {
      config: ACCEPTS_RUN_KEYS,
      ...describe('consumers', 'Remove a consumer', schemas.DeletedConsumer, NAMED),
    },
    async (request) => ({
      consumer: request.params.consumer,
      status: (await consumers.delete(getConsumerName(request))) ? 'deleted' : 'not_found',
    }),
  )
}

function fetchRoute(app: SchemaApp, { consumers, reader, logger, onRow }: ConsumerRoutesOptions): void {
  const closing = new AbortController()
  const onDamaged = (sessionId: string, err: ProxyError) =>
    logEvent(logger, 'damaged_session_discarded', { session_id: sessionId, err })
  app.addHook('preClose', async () => {
    closing.abort(new ProxyError('shutting_down', 'llm-proxy is shutting down'))
  })
  app.post(
    '/consumers/:consumer/fetch',
    {
      config: ACCEPTS_RUN_KEYS,
      ...describe('consumers', 'Lease the next sessions, with their rows', schemas.Fetched, {
        ...NAMED,
        body: schemas.FetchBody,
      }),
    },
    async (request, reply) => {
      const { lease_id: leaseId = randomUUID(), lease_s: leaseS } = request.body
      const lease = {
        consumer: await consumers.get(getConsumerName(request)),
        leaseId,
        leaseMs: Math.ceil(leaseS * 1_000),
      }
      const fetch = new ConsumerFetch({ consumers, reader, onRow, onDamaged }, lease, request.body)
      const signal = AbortSignal.any([createDisconnectSignal(reply), closing.signal])
      return streamJson(reply, await fetch.createResponse(signal))
    },
  )
}

function leaseRoutes(app: SchemaApp, { consumers }: ConsumerRoutesOptions): void {
  const changes = [
    [
      'ack',
      'acknowledged',
      'Acknowledge sessions that were trained on',
      schemas.Acknowledged,
      schemas.AckBody,
    ],
    ['extend', 'extended', 'Extend the lease of sessions', schemas.Extended, schemas.ExtendBody],
    ['release', 'released', 'Release leased sessions', schemas.Released, schemas.ReleaseBody],
  ] as const
  for (const [name, to, summary, schema, body] of changes) {
    const options = {
      config: ACCEPTS_RUN_KEYS,
      ...describe('consumers', summary, schema, { ...NAMED, body }),
    }
    app.post(`/consumers/:consumer/${name}`, options, async (request) => {
      const fields: { lease_id?: string; session_ids?: string[]; lease_s?: number } = request.body
      const { lease_id: leaseId = null, session_ids: ids, lease_s: leaseS = 0 } = fields
      const sessionIds = ids ? [...new Set(ids)] : null
      const leaseMs = Math.ceil(leaseS * 1_000)
      const consumer = getConsumerName(request)
      const changed = new Set(await consumers.change({ consumer, leaseId, sessionIds, to, leaseMs }))
      return { [to]: [...changed], lost: (sessionIds ?? []).filter((sessionId) => !changed.has(sessionId)) }
    })
  }
}

function consumerToWire({ name, idPrefix, createdAtMs, sinceMs, holdMs, selection }: Consumer) {
  return {
    consumer: name.slice(idPrefix.length),
    run: idPrefix === '' ? null : idPrefix.split('/')[1]!,
    metadata: selection.metadata,
    group_by: selection.groupBy,
    group_size: selection.groupSize,
    group_timeout_s: selection.groupTimeoutMs / 1_000,
    rewarded: selection.rewarded,
    since: sinceMs / 1_000,
    hold_s: holdMs / 1_000,
    created_at: createdAtMs / 1_000,
  }
}
