/** Read-only routes of sessions, which both a proxy and a viewer of a database serve. */
import { Readable } from 'node:stream'
import { constants, createGzip } from 'node:zlib'
import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import Type, { type Static } from 'typebox'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { describe, describeMedia } from '../../schemas/described.ts'
import { type SchemaApp, toTypedApp } from '../../schemas/typed-app.ts'
import { readAlternatives } from './alternatives.ts'
import { readStoredDetails } from './details.ts'
import { groupToWire, hitsToWire, toSessionFilter, totalsToWire } from './filter.ts'
import { findForestSessions, queryForest } from './forest.ts'
import { getSessionOrThrow } from './get-session.ts'
import { createJsonStream, streamJson, writeObject } from './json-stream.ts'
import { readTurnByIndex } from './one-turn.ts'
import { computePassAtK } from './pass-at-k.ts'
import { readPreview } from './preview.ts'
import * as reads from './read-schemas.ts'
import {
  getRowIds,
  readRow,
  readRows,
  readTrainerData,
  type TokenTexts,
  writeRowSummaries,
  writeRowTensors,
} from './rows.ts'
import * as schemas from './schemas.ts'
import { sessionToWire, writeSessionWithTurns } from './serialise.ts'
import { readTrajectories } from './trajectory-query.ts'
import { readTree } from './tree.ts'
import { readTurnFigures, turnFiguresToWire } from './turn-figures.ts'

/** A function that decodes tokens with the tokenizer of a model, one by one; undefined: no tokenizer is available. */
export type TokenTextReader = (model: string | null, ids: Int32Array) => Promise<TokenTexts | undefined>

export interface ReadRoutesOptions {
  reader: TurnReader
  tokenTexts: TokenTextReader
  /** The messages of a turn that a response contains by default. Default: `all`. */
  turnMessages?: 'all' | 'new'
  /** Called for each row that a trainer reads. */
  onRow?: (row: Trajectory) => void
}

export const readRoutes: FastifyPluginCallback<ReadRoutesOptions> = (plain, options, done) => {
  const app = toTypedApp(plain)
  listRoutes(app, options)
  fullRoutes(app, options)
  forestRoutes(app, options)
  turnRoutes(app, options)
  rowRoutes(app, options)
  done()
}

function listRoutes(app: SchemaApp, { reader }: ReadRoutesOptions): void {
  app.get(
    '/sessions',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'List sessions', reads.SessionList, {
        description:
          'Parameters `metadata.<key>=<value>`, of which there may be several, select sessions with this metadata.',
        querystring: reads.ListQuery,
      }),
    },
    async (request, reply) => {
      const { limit, sort, order, cursor, totals } = request.query
      const filter = toSessionFilter(request.query, request.caller)
      const page = await reader.listSessions({ ...filter, limit, sort, order, cursor: cursor || undefined })
      return sendJson(request, reply, {
        sessions: page.sessions.map(sessionToWire),
        next_cursor: page.nextCursor ?? null,
        ...(totals && { totals: totalsToWire(await reader.totalSessions(filter)) }),
      })
    },
  )
  app.get(
    '/search',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'Search the text of turns', reads.SearchHits, {
        description: 'The latest turns are first. The filters are those of the list of sessions.',
        querystring: reads.SearchQuery,
      }),
    },
    async (request, reply) => {
      const { text: wanted, limit, per_session: perSession, cursor } = request.query
      const filter = toSessionFilter(request.query, request.caller)
      const search = { ...filter, wanted, limit, perSession, cursor }
      return sendJson(request, reply, hitsToWire(await reader.searchTurns(search)))
    },
  )
  app.get(
    '/groups',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'Group sessions by a metadata value', reads.Groups, {
        description: 'The filters are those of the list of sessions.',
        querystring: reads.GroupsQuery,
      }),
    },
    async (request, reply) => {
      const { by, limit, pass_reward: passReward } = request.query
      const filter = toSessionFilter(request.query, request.caller)
      const found = await reader.groupSessions(by, filter, passReward)
      const figures = request.query.turns ? await readTurnFigures(reader, by, filter) : undefined
      const groups = found.map((group) => {
        const ofTurns = figures?.get(group.value)
        return {
          ...groupToWire(group),
          ...(figures && { of_turns: ofTurns ? turnFiguresToWire(ofTurns) : null }),
        }
      })
      const response = { by, groups: groups.slice(0, limit), total: groups.length }
      const passes = passReward !== undefined && { pass_at: computePassAtK(groups) }
      return sendJson(request, reply, { ...response, ...passes })
    },
  )
}

function fullRoutes(app: SchemaApp, { reader, turnMessages = 'all', onRow }: ReadRoutesOptions): void {
  app.get(
    '/sessions/:sessionId',
    describe('sessions', 'Read a session with all its turns', schemas.ShownSessionWithTurns, {
      params: schemas.SessionParams,
      querystring: schemas.TurnsQuery,
    }),
    async ({ params: { sessionId }, query }, reply) => {
      const session = await getSessionOrThrow(reader, sessionId)
      const turns = query.ids ? reader.readTurns(sessionId) : reader.readOutlines(sessionId)
      return streamJson(reply, writeSessionWithTurns(reader, session, turns, query.messages ?? turnMessages))
    },
  )
  app.get(
    '/sessions/:sessionId/trajectories',
    describe('sessions', 'Read a session as training-ready rows', schemas.Trajectories, {
      params: schemas.SessionParams,
      querystring: schemas.TrajectoriesQuery,
    }),
    async ({ params: { sessionId }, query }, reply) => {
      const session = await getSessionOrThrow(reader, sessionId)
      return streamJson(reply, (await readTrajectories(reader, session, query)).toWire(onRow))
    },
  )
}

function forestRoutes(app: SchemaApp, { reader, onRow }: ReadRoutesOptions): void {
  app.get(
    '/sessions/:sessionId/forest',
    describe('sessions', 'Read the rows of a session, each token once', reads.TokenForest, {
      params: schemas.SessionParams,
      querystring: reads.SessionForestQuery,
    }),
    async ({ params: { sessionId }, query }, reply) => {
      const session = await getSessionOrThrow(reader, sessionId)
      return streamJson(reply, await queryForest(reader, [session], query, onRow))
    },
  )
  app.get(
    '/forest',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'Read the rows of a group, each token once', reads.TokenForest, {
        description: 'The filters are those of the list of sessions. At most 128 sessions may match.',
        querystring: reads.ForestQuery,
      }),
    },
    async ({ query, caller }, reply) => {
      const sessions = await findForestSessions(reader, toSessionFilter(query, caller))
      return streamJson(reply, await queryForest(reader, sessions, query, onRow))
    },
  )
}

function turnRoutes(app: SchemaApp, { reader }: ReadRoutesOptions): void {
  app.get(
    '/sessions/:sessionId/tree',
    describe('sessions', 'Read the tree of turns of a session', reads.Tree, {
      params: schemas.SessionParams,
    }),
    async (request, reply) => {
      const { sessionId } = request.params
      const session = await getSessionOrThrow(reader, sessionId)
      const turns = await readTree(reader.readSteps(sessionId), session.marks)
      await rejectPartial(reader, session)
      return sendJson(request, reply, { ...sessionToWire(session), turns })
    },
  )
  app.get(
    '/sessions/:sessionId/preview',
    describe('sessions', 'Read the task of a session and its last completion', reads.Preview, {
      params: schemas.SessionParams,
    }),
    async ({ params }) => readPreview(reader, await getSessionOrThrow(reader, params.sessionId)),
  )
  app.get(
    '/sessions/:sessionId/turns/:index',
    describe('sessions', 'Read one turn', schemas.ShownTurn, {
      params: reads.TurnParams,
      querystring: reads.OneTurnQuery,
    }),
    async (request, reply) => {
      const { sessionId, index } = request.params
      const session = await getSessionOrThrow(reader, sessionId)
      const chunks = await readTurnByIndex(reader, session, Number(index), request.query)
      return sendCompressed(request, reply, createJsonStream(chunks))
    },
  )
}

const TENSORS = describeMedia('application/octet-stream', Type.String({ format: 'binary' }))

function rowRoutes(app: SchemaApp, { reader, tokenTexts }: ReadRoutesOptions): void {
  const getRow = async (
    { sessionId, row }: Static<typeof reads.RowParams>,
    query: Static<typeof reads.RowsQuery>,
  ) => readRow(reader, await getSessionOrThrow(reader, sessionId), Number(row), query)
  app.get(
    '/sessions/:sessionId/rows',
    describe('sessions', 'Read summaries of the training-ready rows', reads.Rows, {
      description: 'The fields of a trajectory without its lists of tokens, and their lengths.',
      params: schemas.SessionParams,
      querystring: reads.RowsQuery,
    }),
    async (request, reply) => {
      const session = await getSessionOrThrow(reader, request.params.sessionId)
      const { placed } = await readRows(reader, session, request.query)
      return sendCompressed(request, reply, createJsonStream(writeRowSummaries(placed)))
    },
  )
  app.get(
    '/sessions/:sessionId/rows/:row/tokens',
    describe('sessions', 'Read the tokens of a training-ready row', TENSORS, {
      description:
        'A safetensors file: `ids`, `logprobs`, `turns`, `mask`, what a trainer or a teacher has added, and `row` in ' +
        'its metadata; with `texts=true` also `text` and `text_ends`, and their `tokenizer` in the metadata.',
      params: reads.RowParams,
      querystring: reads.TokensQuery,
    }),
    async ({ params, query }, reply) => {
      const { row, layout, model } = await getRow(params, query)
      const texts = query.texts ? await tokenTexts(model, getRowIds(row)) : undefined
      const trainerData = await readTrainerData(reader, params.sessionId, { computeLayout: layout })
      const tensors = writeRowTensors(row, Number(params.row), { trainerData, texts })
      return reply.type('application/octet-stream').send(Readable.from(tensors, { objectMode: false }))
    },
  )
  app.get(
    '/sessions/:sessionId/rows/:row/token_texts',
    describe('sessions', 'Read the texts of a training-ready row, token by token', reads.TokenTexts, {
      params: reads.RowParams,
      querystring: reads.RowsQuery,
    }),
    async (request, reply) => {
      const { row, model } = await getRow(request.params, request.query)
      const texts = await tokenTexts(model, getRowIds(row))
      return sendJson(request, reply, texts ?? { source: null, texts: null })
    },
  )
  app.get(
    '/sessions/:sessionId/rows/:row/alternatives',
    describe('sessions', 'Read the alternatives to sampled tokens', reads.Alternatives, {
      description: 'For the tokens of a training-ready row with recorded `top_logprobs`.',
      params: reads.RowParams,
      querystring: reads.AlternativesQuery,
    }),
    async (request, reply) => {
      const { params, query } = request
      const placed = await getRow(params, query)
      const alternatives = await readAlternatives(placed, query, {
        details: (turns) => readStoredDetails(reader, params.sessionId, turns, ['top_logprobs']),
        texts: (ids) => tokenTexts(placed.model, ids),
      })
      return sendJson(request, reply, { from: query.from, alternatives })
    },
  )
}

/** Sends an object as JSON, and writes its arrays element by element. */
function sendJson(request: FastifyRequest, reply: FastifyReply, value: object): FastifyReply {
  return sendCompressed(request, reply, createJsonStream(writeObject(value)))
}

/** The fastest level of compression, which suffices because responses are repetitive. */
const LEVEL = constants.Z_BEST_SPEED

/** Sends JSON, compressed if the client accepts gzip. */
function sendCompressed({ headers }: FastifyRequest, reply: FastifyReply, body: Readable): FastifyReply {
  void reply.type('application/json; charset=utf-8').header('vary', 'accept-encoding')
  const accepts = /(^|,)\s*gzip\s*(;q=(1|0?\.[1-9])\S*\s*)?(,|$)/.test(headers['accept-encoding'] ?? '')
  if (!accepts) return reply.send(body)
  const gzip = createGzip({ level: LEVEL })
  body.once('error', (error) => gzip.destroy(error))
  gzip.once('close', () => body.destroy())
  return reply.header('content-encoding', 'gzip').send(body.pipe(gzip))
}
