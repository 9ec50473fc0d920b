/** Rows of `turns`: what the writer does to them. */
import type Database from 'better-sqlite3'
import { ProxyError } from '../../errors.ts'
import { type Annotations, answerFor } from '../answered-retries.ts'
import type { SessionStatus, TurnError, TurnStatus } from '../turn-store.ts'
import { DETAIL_SUMMED, IDS_SUMMED, sumOf, TURN_SUMMED } from './check-sums.ts'
import {
  packIds,
  packLogprobs,
  packOptionalText,
  packText,
  type StoredText,
  unpackOptionalText,
} from './packing.ts'
import { RequestWriter } from './requests.ts'
import type { RecordedRequest, RecordedTurn, SentOutcome, SentPrompt, SentTurn } from './sent-turn.ts'
import type { SessionWriter, TurnChange } from './sessions.ts'
import { type StoredPrompt, TokenSequences } from './token-sequences.ts'

type Columns = Record<string, unknown>

/** An open turn: its id, and the columns of its request. */
type OpenRow = Columns & { id: number; tree: number; node: number }

/** Columns of `turns` by the name of what goes into them. */
const REQUEST_COLUMNS = {
  tree: 'tree',
  index: 'call_index',
  turnId: 'turn_id',
  dialect: 'dialect',
  startedAtMs: 'started_at_ms',
  retryCount: 'retry_count',
  node: 'node',
  tools: 'tools',
  params: 'params',
  promptNode: 'prompt_node',
}

const OUTCOME_COLUMNS = {
  status: 'status',
  endedAtMs: 'ended_at_ms',
  firstTokenAtMs: 'first_token_at_ms',
  model: 'model',
  engine: 'engine',
  finishReason: 'finish_reason',
  stopReason: 'stop_reason',
  exact: 'exact',
  inexactReason: 'inexact_reason',
  weightVersionStart: 'weight_version_start',
  weightVersionEnd: 'weight_version_end',
  usage: 'usage',
  annotations: 'annotations',
  errorCode: 'error_code',
  errorMessage: 'error_message',
  completionText: 'completion_text',
  reasoning: 'reasoning',
  toolCalls: 'tool_calls',
  base: 'prompt_base',
  shared: 'prompt_shared',
  rest: 'prompt_rest',
  completionIds: 'completion_ids',
  completionLogprobs: 'completion_logprobs',
  idsSum: 'ids_sum',
  turnSum: 'turn_sum',
}

/** Of a turn that has ended, what its delivery changes. */
interface EndedRow {
  id: number
  status: TurnStatus
  exact: number
  finish_reason: StoredText | null
  error_code: string | null
  annotations: StoredText | null
  session_status: SessionStatus
}

/** A turn that has no row yet. */
const NO_TURN = 0

export class TurnWriter {
  readonly #sessions: SessionWriter
  readonly #requests: RequestWriter
  readonly #sequences: TokenSequences
  readonly #open: Database.Statement<[Columns]>
  readonly #findOpen: Database.Statement<[number, string], OpenRow>
  readonly #close: Database.Statement<[Columns]>
  readonly #record: Database.Statement<[Columns]>
  readonly #findEnded: Database.Statement<[string, string], EndedRow>
  readonly #deliver: Database.Statement<[Columns]>
  readonly #addDetail: Database.Statement<[Columns]>

  constructor(db: Database.Database, sessions: SessionWriter, cacheBytes: number) {
    this.#sessions = sessions
    this.#requests = new RequestWriter(db)
    this.#sequences = new TokenSequences(db, cacheBytes)
    this.#open = db.prepare(insertOf({ ...REQUEST_COLUMNS, status: 'status' }))
    this.#findOpen = db.prepare(
      `SELECT id, ${Object.values(REQUEST_COLUMNS).join(', ')} FROM turns WHERE tree = ? AND turn_id = ? AND status = 'open'`,
    )
    const assignments = Object.entries(OUTCOME_COLUMNS).map(([name, column]) => `${column} = @${name}`)
    this.#close = db.prepare(`UPDATE turns SET ${assignments.join(', ')} WHERE id = @id`)
    this.#record = db.prepare(insertOf({ ...REQUEST_COLUMNS, ...OUTCOME_COLUMNS }))
    this.#findEnded = db.prepare(`
      SELECT turns.id, turns.status, exact, finish_reason, error_code, annotations, sessions.status AS session_status
      FROM turns JOIN sessions ON sessions.tree = turns.tree WHERE session_id = ? AND turn_id = ?`)
    this.#deliver = db.prepare(`
      UPDATE turns SET status = @status, error_code = @code, error_message = @message, annotations = @annotations
      WHERE id = @id`)
    this.#addDetail = db.prepare(
      'INSERT INTO details (tree, turn, kind, body, detail_sum) VALUES (@tree, @turn, @kind, @body, @sum)',
    )
  }

  /** @throws ProxyError `session_not_found` */
  open(turn: SentTurn): RecordedRequest {
    const { columns, recorded } = this.#putRequest(turn)
    this.#open.run({ ...columns, status: 'open' })
    this.#sessions.touch(turn.sessionId, { newTurns: 1, openTurns: 1 }, turn.startedAtMs)
    return recorded
  }

  /** @returns its row; undefined if it was not there, or not open */
  close(outcome: SentOutcome): number | undefined {
    const tree = this.#sessions.tree(outcome.sessionId)
    const turn = tree === undefined ? undefined : this.#findOpen.get(tree, outcome.turnId)
    if (turn === undefined) return undefined
    const columns = { ...outcomeColumns(outcome), ...this.#packPrompt(turn, outcome.prompt) }
    this.#close.run({ ...columns, ...sumsOf(turn, columns), id: turn.id })
    this.#addDetails(turn, outcome)
    this.#requests.rememberAnswer(turn.tree, { id: turn.id, ...outcome })
    this.#sessions.touch(outcome.sessionId, { openTurns: -1, ...countsOf(outcome) }, outcome.endedAtMs)
    return turn.id
  }

  /** A turn that has ended already. @throws ProxyError `session_not_found` */
  record(turn: SentTurn, outcome: SentOutcome): RecordedTurn {
    const { columns, recorded } = this.#putRequest(turn)
    const { tree, node } = columns
    const prompt = this.#packPrompt({ id: NO_TURN, tree, node }, outcome.prompt)
    const ended = { ...outcomeColumns(outcome), ...prompt }
    const sums = sumsOf(byColumn(columns, REQUEST_COLUMNS), ended)
    const row = this.#record.run({ ...columns, ...ended, ...sums })
    const id = Number(row.lastInsertRowid)
    this.#addDetails({ id, tree }, outcome)
    this.#requests.rememberAnswer(tree, { id, ...outcome })
    const endedAtMs = Math.max(turn.startedAtMs, outcome.endedAtMs)
    this.#sessions.touch(turn.sessionId, { newTurns: 1, ...countsOf(outcome) }, endedAtMs)
    return { turn: id, request: recorded }
  }

  #addDetails({ id: turn, tree }: { id: number; tree: number }, { details = [] }: SentOutcome): void {
    for (const { kind, body } of details) {
      const row = { tree, turn, kind, body }
      this.#addDetail.run({ ...row, sum: sumOf(row, DETAIL_SUMMED) })
    }
  }

  /** As it was sent; only of one that came whole it is found out what it shares with a turn on record. */
  #packPrompt(turn: { id: number; tree: number; node: number }, prompt: SentPrompt | null): StoredPrompt {
    if (prompt === null) return { base: null, shared: null, rest: null }
    const { base, shared, rest } = prompt
    return base === null ? this.#sequences.pack(turn, rest) : { base, shared, rest: packIds(rest) }
  }

  #putRequest(turn: SentTurn) {
    const tree = this.#sessions.tree(turn.sessionId)
    if (tree === undefined) throw new ProxyError('session_not_found', 'Session not found')
    const { index, turnId, dialect, startedAtMs, retryCount } = turn
    const messages = this.#requests.putMessages(tree, turn.messages)
    const prompt = this.#requests.putPrompt(tree, turn.prompt)
    const tools = turn.tools === null ? null : this.#requests.putTools(tree, turn.tools)
    const params = this.#requests.putText(tree, turn.params)
    return {
      columns: {
        tree,
        index,
        turnId,
        dialect,
        startedAtMs,
        retryCount,
        node: messages.node,
        tools,
        params,
        promptNode: prompt.whole.node,
      },
      recorded: { messages, prompt: prompt.butLast, tools } satisfies RecordedRequest,
    }
  }

  markUndelivered(sessionId: string, turnId: string, error: TurnError, retriesAnswered: number): void {
    const turn = this.#findEnded.get(sessionId, turnId)
    if (turn?.status !== 'completed') return
    const annotations = annotationsOf(turn)
    if ((annotations.answered_retries?.length ?? 0) !== retriesAnswered) return
    this.#setDelivery(sessionId, turn, { status: 'aborted', error, annotations })
  }

  /** @returns how many retries have the turn's answer */
  answerRetry(sessionId: string, turnId: string, retryCount: number): number | undefined {
    const turn = this.#findEnded.get(sessionId, turnId)
    if (turn?.session_status !== 'active') return undefined
    const annotations = annotationsOf(turn)
    const answered = answerFor(retryCount, {
      status: turn.status,
      finishReason: unpackOptionalText(turn.finish_reason),
      errorCode: turn.error_code,
      annotations,
    })
    if (answered === undefined) return undefined
    this.#setDelivery(sessionId, turn, { status: 'completed', error: null, annotations: answered })
    return answered.answered_retries.length
  }

  #setDelivery(
    sessionId: string,
    turn: EndedRow,
    { status, error, annotations }: { status: TurnStatus; error: TurnError | null; annotations: object },
  ): void {
    this.#deliver.run({
      id: turn.id,
      status,
      code: error?.code ?? null,
      message: packOptionalText(error?.message ?? null),
      annotations: packAnnotations(JSON.stringify(annotations)),
    })
    const counted = (is: TurnStatus) => (is === 'completed' && turn.exact === 0 ? 1 : 0)
    const inexactTurns = counted(status) - counted(turn.status)
    if (inexactTurns !== 0) this.#sessions.touch(sessionId, { inexactTurns }, 0)
  }

  /** Nothing more is compared with the session's turns: what is remembered of them would only fill the memory. */
  forgetSession(sessionId: string): void {
    const tree = this.#sessions.tree(sessionId)
    if (tree === undefined) return
    this.#requests.forgetTree(tree)
    this.#sequences.forgetTree(tree)
  }

  /** To be called after a rollback. */
  forget(): void {
    this.#requests.forget()
    this.#sequences.forget()
  }
}

/** What a turn that ends so adds to its session's counts. */
function countsOf({ status, exact, completionTokenIds }: SentOutcome): TurnChange {
  return {
    failedTurns: status === 'failed' ? 1 : 0,
    inexactTurns: status === 'completed' && !exact ? 1 : 0,
    sampledTokens: completionTokenIds.length,
  }
}

function packAnnotations(json: string): StoredText | null {
  return json === '{}' ? null : packText(json)
}

function annotationsOf({ annotations }: EndedRow): Annotations {
  return JSON.parse(unpackOptionalText(annotations) ?? '{}')
}

/** @param request as its columns are on record */
function sumsOf(request: Columns, ended: Columns): { idsSum: number; turnSum: number } {
  const row = { ...request, ...byColumn(ended, OUTCOME_COLUMNS) }
  return { idsSum: sumOf(row, IDS_SUMMED), turnSum: sumOf(row, TURN_SUMMED) }
}

function byColumn(values: Columns, columns: Record<string, string>): Columns {
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [column, values[name]]))
}

function insertOf(columns: Record<string, string>): string {
  const names = Object.keys(columns).map((name) => `@${name}`)
  return `INSERT INTO turns (${Object.values(columns).join(', ')}) VALUES (${names.join(', ')})`
}

function outcomeColumns(outcome: SentOutcome): Columns {
  return {
    status: outcome.status,
    endedAtMs: outcome.endedAtMs,
    firstTokenAtMs: outcome.firstTokenAtMs,
    model: packOptionalText(outcome.model),
    engine: packOptionalText(outcome.engine),
    finishReason: packOptionalText(outcome.finishReason),
    stopReason: packOptionalText(outcome.stopReason),
    exact: outcome.exact ? 1 : 0,
    inexactReason: packOptionalText(outcome.inexactReason),
    weightVersionStart: packOptionalText(outcome.weightVersionStart),
    weightVersionEnd: packOptionalText(outcome.weightVersionEnd),
    usage: packOptionalText(outcome.usage),
    annotations: packAnnotations(outcome.annotations),
    errorCode: outcome.error?.code ?? null,
    errorMessage: packOptionalText(outcome.error?.message ?? null),
    completionText: packOptionalText(outcome.completionText),
    reasoning: packOptionalText(outcome.reasoning),
    toolCalls: packText(outcome.toolCalls),
    completionIds: outcome.completionTokenIds.length === 0 ? null : packIds(outcome.completionTokenIds),
    completionLogprobs:
      outcome.completionLogprobs.length === 0 ? null : packLogprobs(outcome.completionLogprobs),
  }
}
