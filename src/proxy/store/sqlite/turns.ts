/** Rows of `turns`: what the writer does to them. */
import type Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import { type Annotations, answerFor } from '../port/answered-retries.ts'
import type { SessionStatus, TurnError, TurnStatus } from '../port/turn-store.ts'
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

/** Values by the names of their columns. */
type Row = Readonly<Record<string, unknown>>

/** An open turn: its id, and the columns of its request. */
type OpenRow = Row & { id: number; tree: number; node: number }

/** Of a request, in the order in which their values are bound. */
const REQUEST_COLUMNS = columns(
  'tree call_index turn_id dialect started_at_ms retry_count node tools params prompt_node',
)

/** The same of an outcome. */
const OUTCOME_COLUMNS = columns(
  'status ended_at_ms first_token_at_ms model engine finish_reason stop_reason exact inexact_reason',
  'weight_version_start weight_version_end usage annotations error_code error_message completion_text',
  'reasoning tool_calls prompt_base prompt_shared prompt_rest completion_ids completion_logprobs',
  'ids_sum turn_sum',
)

const OPENED_COLUMNS = [...REQUEST_COLUMNS, 'status']
const RECORDED_COLUMNS = [...REQUEST_COLUMNS, ...OUTCOME_COLUMNS]

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
  readonly #open: Database.Statement<[unknown[]]>
  readonly #findOpen: Database.Statement<[number, string], OpenRow>
  readonly #close: Database.Statement<[unknown[]]>
  readonly #record: Database.Statement<[unknown[]]>
  readonly #findEnded: Database.Statement<[string, string], EndedRow>
  readonly #deliver: Database.Statement<[Row]>
  readonly #addDetail: Database.Statement<[Row]>

  constructor(db: Database.Database, sessions: SessionWriter, cacheBytes: number) {
    this.#sessions = sessions
    this.#requests = new RequestWriter(db)
    this.#sequences = new TokenSequences(db, cacheBytes)
    // Values are bound by their places: to find thirty names takes longer than to write the row.
    this.#open = db.prepare(insertOf(OPENED_COLUMNS))
    this.#findOpen = db.prepare(
      `SELECT id, ${REQUEST_COLUMNS.join(', ')} FROM turns WHERE tree = ? AND turn_id = ? AND status = 'open'`,
    )
    const assignments = OUTCOME_COLUMNS.map((column) => `${column} = ?`)
    this.#close = db.prepare(`UPDATE turns SET ${assignments.join(', ')} WHERE id = ?`)
    this.#record = db.prepare(insertOf(RECORDED_COLUMNS))
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
    const { row, recorded } = this.#putRequest(turn)
    this.#open.run(valuesOf({ ...row, status: 'open' }, OPENED_COLUMNS))
    this.#sessions.touch(turn.sessionId, { newTurns: 1, openTurns: 1 }, turn.startedAtMs)
    return recorded
  }

  /** @returns its row; undefined if it was not there, or not open */
  close(outcome: SentOutcome): number | undefined {
    const tree = this.#sessions.tree(outcome.sessionId)
    const turn = tree === undefined ? undefined : this.#findOpen.get(tree, outcome.turnId)
    if (turn === undefined) return undefined
    const row = endedRow(turn, outcome, this.#packPrompt(turn, outcome.prompt))
    this.#close.run([...valuesOf(row, OUTCOME_COLUMNS), turn.id])
    this.#addDetails(turn, outcome)
    this.#requests.rememberAnswer(turn.tree, { id: turn.id, ...outcome })
    this.#sessions.touch(outcome.sessionId, { openTurns: -1, ...countsOf(outcome) }, outcome.endedAtMs)
    return turn.id
  }

  /** A turn that has ended already. @throws ProxyError `session_not_found` */
  record(turn: SentTurn, outcome: SentOutcome): RecordedTurn {
    const { row: request, recorded } = this.#putRequest(turn)
    const { tree, node } = request
    const row = endedRow(request, outcome, this.#packPrompt({ id: NO_TURN, tree, node }, outcome.prompt))
    const id = Number(this.#record.run(valuesOf(row, RECORDED_COLUMNS)).lastInsertRowid)
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
      row: {
        tree,
        call_index: index,
        turn_id: turnId,
        dialect,
        started_at_ms: startedAtMs,
        retry_count: retryCount,
        node: messages.node,
        tools,
        params,
        prompt_node: prompt.whole.node,
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

function columns(...names: readonly string[]): readonly string[] {
  return names.flatMap((some) => some.split(' '))
}

function valuesOf(row: Row, columns: readonly string[]): unknown[] {
  return columns.map((column) => row[column])
}

function insertOf(columns: readonly string[]): string {
  return `INSERT INTO turns (${columns.join(', ')}) VALUES (${columns.map(() => '?').join(', ')})`
}

/** @param request as its columns are on record */
function endedRow(request: Row, outcome: SentOutcome, { base, shared, rest }: StoredPrompt): Row {
  const { completionTokenIds: ids, completionLogprobs: logprobs } = outcome
  const row = {
    ...request,
    status: outcome.status,
    ended_at_ms: outcome.endedAtMs,
    first_token_at_ms: outcome.firstTokenAtMs,
    model: packOptionalText(outcome.model),
    engine: packOptionalText(outcome.engine),
    finish_reason: packOptionalText(outcome.finishReason),
    stop_reason: packOptionalText(outcome.stopReason),
    exact: outcome.exact ? 1 : 0,
    inexact_reason: packOptionalText(outcome.inexactReason),
    weight_version_start: packOptionalText(outcome.weightVersionStart),
    weight_version_end: packOptionalText(outcome.weightVersionEnd),
    usage: packOptionalText(outcome.usage),
    annotations: packAnnotations(outcome.annotations),
    error_code: outcome.error?.code ?? null,
    error_message: packOptionalText(outcome.error?.message ?? null),
    completion_text: packOptionalText(outcome.completionText),
    reasoning: packOptionalText(outcome.reasoning),
    tool_calls: packText(outcome.toolCalls),
    prompt_base: base,
    prompt_shared: shared,
    prompt_rest: rest,
    completion_ids: ids.length === 0 ? null : packIds(ids),
    completion_logprobs: logprobs.length === 0 ? null : packLogprobs(logprobs),
    ids_sum: 0,
    turn_sum: 0,
  }
  row.ids_sum = sumOf(row, IDS_SUMMED)
  row.turn_sum = sumOf(row, TURN_SUMMED)
  return row
}
