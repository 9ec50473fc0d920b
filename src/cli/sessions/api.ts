/** The sessions API that the `sessions` commands use, of a running proxy or over a database. */
import type { Static, TSchema } from 'typebox'
import type { ExportQuery } from '../../proxy/http/trainer/formats/schemas.ts'
import type { SearchHits, SessionList, Tree } from '../../proxy/http/trainer/sessions/read-schemas.ts'
import type {
  Session,
  SessionWithTurns,
  ShownSessionWithTurns,
  Trajectories,
} from '../../proxy/http/trainer/sessions/schemas.ts'
import type { TrajectoryQuery } from '../../proxy/http/trainer/sessions/trajectory-query.ts'
import type { SessionSort, SessionStatus } from '../../proxy/store/port/turn-store.ts'

export type SessionJson = Static<typeof Session>
export type TurnJson = SessionWithTurnsJson['turns'][number]
export type SessionWithTurnsJson = Static<typeof SessionWithTurns>
export type TurnDisplayJson = Static<typeof ShownSessionWithTurns>['turns'][number]
export type TreeJson = Static<typeof Tree>
type TrajectoriesJson = Static<typeof Trajectories>
export type TrajectoryJson = TrajectoriesJson['trajectories'][number]

export type SearchHitJson = Static<typeof SearchHits>['hits'][number]

export interface SearchQuery {
  text: string
  /** Only sessions of this run. */
  run?: string | undefined
  per_session: number
  limit: number
  cursor?: string | undefined
}

export interface ListQuery {
  status?: SessionStatus | undefined
  /** Only sessions of this run. */
  run?: string | undefined
  /** The key of the order, which is descending. Default: `created`. */
  sort?: SessionSort | undefined
  /** Only sessions that changed at this time or later; seconds since the epoch. */
  since?: number | undefined
  /** A label of the session, or of one of its turns. */
  label?: string | undefined
  /** Values as text; see `metadata.<key>` of `GET /sessions`. */
  metadata?: Readonly<Record<string, string>> | undefined
  limit: number
  cursor?: string | undefined
}

/** The sessions API. Every method throws ProxyError `session_not_found` or `start_failed`. */
export interface SessionsApi {
  list(query: ListQuery): Promise<Static<typeof SessionList>>
  search(query: SearchQuery): Promise<Static<typeof SearchHits>>
  getWithTurns(sessionId: string): Promise<SessionWithTurnsJson>
  /** Returns the tree of turns. */
  getTree(sessionId: string): Promise<TreeJson>
  /** Returns the turns, each with only its new messages and without token ids. */
  getConversation(sessionId: string): Promise<TurnDisplayJson[]>
  getWithTrajectories(
    sessionId: string,
    rows: Pick<TrajectoryQuery, 'select' | 'side_calls' | 'rejected' | 'finished_only' | 'details'> &
      Partial<Pick<TrajectoryQuery, 'per_turn'>>,
  ): Promise<TrajectoriesJson>
  /** Yields chunks of lines in an export format. */
  exportSession(sessionId: string, query: Static<typeof ExportQuery>): AsyncIterable<string>
  close(): Promise<void>
}

/** The routes that change sessions, of a running proxy or over a database. */
export interface ChangesApi {
  /** Sends a request. @throws ProxyError `session_not_found` for a 404, `start_failed` for any other failure */
  sendJson<S extends TSchema>(
    method: 'POST' | 'DELETE',
    path: string,
    schema: S,
    body?: object,
  ): Promise<Static<S>>
}
