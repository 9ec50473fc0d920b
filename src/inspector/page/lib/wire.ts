/** Types of the API's responses, derived from its schemas. */
import type { Static } from 'typebox'
import type * as workers from '../../../proxy/http/operator/workers/schemas.ts'
import type * as reads from '../../../proxy/http/trainer/sessions/read-schemas.ts'
import type * as sessions from '../../../proxy/http/trainer/sessions/schemas.ts'

export type Session = Static<typeof sessions.Session>
/** The labels and the note of one turn. */
export type TurnLabels = Session['turn_labels'][string]
/** A turn without its lists of tokens. */
export type Turn = Omit<
  Static<typeof sessions.Turn>,
  'completion_token_ids' | 'completion_logprobs' | 'prompt_token_ids'
>
export type SessionList = Static<typeof reads.SessionList>
export type Totals = Static<typeof reads.Totals>
export type Group = Static<typeof reads.Group>
export type Groups = Static<typeof reads.Groups>
export type SearchHits = Static<typeof reads.SearchHits>
export type Preview = Static<typeof reads.Preview>
export type Tree = Static<typeof reads.Tree>
export type TreeTurn = Static<typeof reads.TreeTurn>
export type Alternatives = Static<typeof reads.Alternatives>
export type ProxyEvent = Static<typeof reads.ProxyEvent>
export type LiveEvent = Static<typeof reads.LiveEvent>
export type Member = Static<typeof workers.Worker>

/** The summary of a row: the fields of a trajectory without its arrays, with statistics of them. */
export type Row = Static<typeof reads.RowSummary> &
  Omit<
    Static<typeof sessions.TrajectoryRow>,
    'prompt_ids' | 'response_ids' | 'response_mask' | 'response_logprobs'
  >

/** The fields of `GET /health` that the page reads. */
export interface Health {
  /** Whether the proxy has `/rollouts`. */
  rollouts?: true
  status: string
  mode: 'local' | 'relay' | 'view' | 'file'
  queued?: number
  paused?: boolean
  prompts?: Record<string, number>
  uptime_s?: number
  db?: string
  notes?: string[]
  engines?: MemberHealth[]
  workers?: MemberHealth[]
}

interface MemberHealth {
  name: string
  warning?: string
}

/** An entry of `GET /rollouts`. Times are epoch seconds. */
export interface Rollout {
  rollout_id: string
  status: 'waiting' | 'running' | 'done' | 'failed' | 'cancelled'
  created_at: number
  ended_at: number | null
  instance_id: string | null
  session_id: string | null
  reward: number | null
  tries: number | null
  error: string | null
}
