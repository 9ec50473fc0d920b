/** The writer of rows of `turns`. */
import { ProxyError } from '../../../base/errors.ts'
import { type Annotations, annotateRetry } from '../port/answered-retries.ts'
import type { TurnDetails, TurnError, TurnStatus } from '../port/turn-store.ts'
import { computeSum, DETAIL_SUMMED } from './check-sums.ts'
import { packIds, packLogprobs, packOptionalText, unpackOptionalText } from './packing.ts'
import { RequestWriter } from './requests.ts'
import type { SessionCounterChange } from './session-rows.ts'
import type { SessionWriter } from './session-writer.ts'
import type { ColumnValues, PromptColumns, TurnEndRow, TurnTables } from './tables.ts'
import { TokenSequences } from './token-sequences.ts'
import { IDS_SUMMED, packAnnotations, packFields, TURN_SUMMED } from './turn-columns.ts'
import type {
  OutcomeMessage,
  PromptReference,
  RequestReply,
  TextBatch,
  TurnMessage,
  TurnReply,
} from './turn-message.ts'

/** The row id of a turn that has no row yet. */
const NO_TURN = 0

export class TurnWriter {
  readonly #sessions: SessionWriter
  readonly #tables: TurnTables
  readonly #requests: RequestWriter
  readonly #sequences: TokenSequences

  constructor(tables: TurnTables, sessions: SessionWriter, cacheBytes: number) {
    this.#sessions = sessions
    this.#tables = tables
    this.#requests = new RequestWriter(tables)
    this.#sequences = new TokenSequences(tables, cacheBytes)
  }

  /** Opens a turn. @throws ProxyError `session_not_found` */
  open(turn: TurnMessage): RequestReply {
    const { row, recorded } = this.#putRequest(turn)
    this.#tables.openTurn({ ...row, status: 'open' })
    this.#sessions.touch(turn.sessionId, { newTurns: 1, openTurns: 1 }, turn.startedAtMs)
    return recorded
  }

  /** Stores a batch of texts, unless an earlier batch is missing; the turn's own command then stores these texts. */
  putTextBatch(batch: TextBatch): void {
    this.#checkEpoch(batch)
    const tree = this.#sessions.findTree(batch.sessionId)
    if (tree === undefined || batch.texts === undefined) return
    batch.onWritten(this.#requests.putTextBatch(tree, batch.list, batch.texts))
  }

  /** Closes a turn. @returns its row id; undefined if it does not exist, or is not open */
  close(outcome: OutcomeMessage): number | undefined {
    this.#checkEpoch(outcome)
    const tree = this.#sessions.findTree(outcome.sessionId)
    const turn = tree === undefined ? undefined : this.#tables.findOpen(tree, outcome.turnId)
    if (turn === undefined) return undefined
    const row = buildEndedRow(turn, outcome, this.#packPrompt(turn, outcome.prompt))
    this.#tables.closeTurn(turn.id, row)
    this.#putDetails(turn, outcome)
    this.#sessions.touch(outcome.sessionId, { openTurns: -1, ...getCounts(outcome) }, outcome.endedAtMs)
    return turn.id
  }

  /** Stores a turn that has ended already. @throws ProxyError `session_not_found` */
  record(turn: TurnMessage, outcome: OutcomeMessage): TurnReply {
    const { row: request, recorded } = this.#putRequest(turn)
    const { tree, node } = request
    const row = buildEndedRow(request, outcome, this.#packPrompt({ id: NO_TURN, tree, node }, outcome.prompt))
    const id = this.#tables.addTurn(row)
    this.#putDetails({ id, tree }, outcome)
    const endedAtMs = Math.max(turn.startedAtMs, outcome.endedAtMs)
    this.#sessions.touch(turn.sessionId, { newTurns: 1, ...getCounts(outcome) }, endedAtMs)
    return { turn: id, request: recorded }
  }

  /** Adds token data to turns. @throws ProxyError `session_not_found`, `turn_not_found` */
  addDetails(sessionId: string, turns: readonly TurnDetails[]): void {
    const tree = this.#sessions.findTree(sessionId)
    if (tree === undefined) throw new ProxyError('session_not_found', 'Session not found')
    for (const { turnId, details } of turns) {
      const turn = this.#tables.findEnded(sessionId, turnId)
      if (turn === undefined || turn.status === 'open')
        throw new ProxyError('turn_not_found', `The session has no turn '${turnId}' that has ended`)
      this.#putDetails({ id: turn.id, tree }, { details })
    }
  }

  #putDetails(
    { id: turn, tree }: { id: number; tree: number },
    { details = [] }: Pick<OutcomeMessage, 'details'>,
  ): void {
    for (const { kind, body } of details) {
      const row = { tree, turn, kind, body }
      this.#tables.putDetail({ ...row, sum: computeSum(row, DETAIL_SUMMED) })
    }
  }

  /** Packs a prompt. Searches for a base only if the sender has named none. */
  #packPrompt(
    turn: { id: number; tree: number; node: number },
    prompt: PromptReference | null,
  ): PromptColumns {
    if (prompt === null) return { base: null, shared: null, rest: null }
    const { base, shared, rest } = prompt
    return base === null ? this.#sequences.pack(turn, rest) : { base, shared, rest: packIds(rest) }
  }

  #checkEpoch({ sessionId, epoch }: Pick<TurnMessage | OutcomeMessage, 'sessionId' | 'epoch'>): void {
    if (epoch !== undefined) this.#sessions.checkEpoch(sessionId, epoch)
  }

  #putRequest(turn: TurnMessage) {
    this.#checkEpoch(turn)
    const tree = this.#sessions.findTree(turn.sessionId)
    if (tree === undefined) throw new ProxyError('session_not_found', 'Session not found')
    const messages = this.#requests.putMessages(tree, turn.messages)
    const prompt = this.#requests.putPrompt(tree, turn.prompt)
    const tools = turn.tools === null ? null : this.#requests.putTools(tree, turn.tools)
    const params = this.#requests.putText(tree, turn.params)
    return {
      row: {
        ...packFields('request', turn),
        tree,
        node: messages.node,
        tools,
        params,
        prompt_node: prompt.whole.node,
      },
      recorded: { messages, prompt: prompt.butLast, tools } satisfies RequestReply,
    }
  }

  markUndelivered(sessionId: string, turnId: string, error: TurnError, retriesAnswered = 0): void {
    const turn = this.#tables.findEnded(sessionId, turnId)
    if (turn?.status !== 'completed') return
    const annotations = parseAnnotations(turn)
    if ((annotations.answered_retries?.length ?? 0) !== retriesAnswered) return
    this.#setDelivery(sessionId, turn, { status: 'aborted', error, annotations })
  }

  /**
   * Marks a turn's response as delivered to a retry.
   * @returns the number of retries that received it; undefined if it cannot be redelivered
   */
  markRedelivered(sessionId: string, turnId: string, retryCount: number): number | undefined {
    const turn = this.#tables.findEnded(sessionId, turnId)
    if (turn?.session_status !== 'active') return undefined
    const annotations = parseAnnotations(turn)
    const answered = annotateRetry(retryCount, {
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
    turn: TurnEndRow,
    { status, error, annotations }: { status: TurnStatus; error: TurnError | null; annotations: object },
  ): void {
    this.#tables.deliver({
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

  /** Discards the cached sequences of a session that is ended, reset or deleted: no prompt will extend them. */
  forgetSession(sessionId: string): void {
    const tree = this.#sessions.findTree(sessionId)
    if (tree !== undefined) this.#sequences.forgetTree(tree)
  }

  /** Discards all caches. To be called after a rollback. */
  forget(): void {
    this.#sequences.forget()
  }
}

/** Returns the change of the session's counters that the end of a turn causes. */
function getCounts({ status, exact, completionTokenIds }: OutcomeMessage): SessionCounterChange {
  return {
    failedTurns: status === 'failed' ? 1 : 0,
    inexactTurns: status === 'completed' && !exact ? 1 : 0,
    sampledTokens: completionTokenIds.length,
  }
}

function parseAnnotations({ annotations }: TurnEndRow): Annotations {
  return JSON.parse(unpackOptionalText(annotations) ?? '{}')
}

/** Builds the columns of an ended turn. @param request the stored columns of its request */
function buildEndedRow(
  request: ColumnValues,
  outcome: OutcomeMessage,
  { base, shared, rest }: PromptColumns,
): ColumnValues {
  const { completionTokenIds: ids, completionLogprobs: logprobs } = outcome
  const row: ColumnValues = {
    ...request,
    ...packFields('outcome', outcome),
    error_code: outcome.error?.code ?? null,
    error_message: packOptionalText(outcome.error?.message ?? null),
    prompt_base: base,
    prompt_shared: shared,
    prompt_rest: rest,
    completion_ids: ids.length === 0 ? null : packIds(ids),
    completion_logprobs: logprobs.length === 0 ? null : packLogprobs(logprobs),
  }
  return { ...row, ids_sum: computeSum(row, IDS_SUMMED), turn_sum: computeSum(row, TURN_SUMMED) }
}
