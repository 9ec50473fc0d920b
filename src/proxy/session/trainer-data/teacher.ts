/**
 * A teacher reads what a session sampled and says how probable each token is to it, as on-policy distillation asks. Any
 * engine or worker that takes token ids can be one: it is sent a row as a prompt, with `prompt_logprobs`, and samples one
 * token that nobody uses.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'
import { type PromptTable, packTokenData } from '../../../protocol/token-data/token-data.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type { TurnDetails, TurnStore } from '../../store/port/turn-store.ts'
import { type Trajectory, TrajectoryBuilder } from '../trajectories/trajectories.ts'

interface ScoreOptions {
  /** Only an engine that lists this model reads. Absent: whichever has time. */
  readonly model?: string
  /** Under which name its logprobs are kept. Absent: the model's, as the engine gives it. */
  readonly teacher?: string
}

export interface SessionScores {
  /** null: there was nothing to read. */
  readonly teacher: string | null
  readonly rows: number
  readonly turns: number
  readonly tokens: number
  /** Rows that no teacher can read: without exact ids, or with images, whose ids alone say nothing. */
  readonly left_out: { readonly inexact: number; readonly images: number }
}

/**
 * Scores all rows of the session, side calls among them, and keeps the logprobs as details of the turns, in the place of an
 * earlier teacher's. Nothing is kept if one row cannot be read.
 * @throws ProxyError as `Backend.generate`; `engine_failed` for an engine that does not tell; `turn_not_found` for a turn that
 *   was removed meanwhile
 */
export async function scoreSession(
  { store, backend }: { store: Pick<TurnStore, 'readSteps' | 'addDetails'>; backend: Backend },
  sessionId: string,
  options: ScoreOptions,
  signal: AbortSignal,
): Promise<SessionScores> {
  const builder = new TrajectoryBuilder({ sideCalls: true })
  for await (const turn of store.readSteps(sessionId)) builder.add(turn)
  const scored: TurnDetails[] = []
  const leftOut = { inexact: 0, images: 0 }
  let [teacher, rows, tokens]: [string | null, number, number] = [null, 0, 0]
  for (const row of builder.rows({}, null)) {
    const spans = row.turns.filter(({ trained, start, end }) => trained && end > start)
    if (!row.exact) leftOut.inexact += 1
    else if (row.images) leftOut.images += 1
    if (!row.exact || row.images || spans.length === 0) continue
    const { logprobs, model } = await read(backend, row, options, signal)
    teacher ??= options.teacher ?? model
    rows += 1
    for (const { turn_id: turnId, start, end } of spans) {
      const teacherLogprobs = { teacher, logprobs: logprobs.slice(start, end) }
      scored.push({ turnId, details: packTokenData({ teacher_logprobs: teacherLogprobs }) })
      tokens += end - start
    }
  }
  if (scored.length > 0) await store.addDetails(sessionId, scored)
  return { teacher, rows, turns: scored.length, tokens, left_out: leftOut }
}

/** @returns the logprobs of the row's response */
async function read(
  backend: Backend,
  row: Trajectory,
  { model }: ScoreOptions,
  signal: AbortSignal,
): Promise<{ logprobs: readonly number[]; model: string }> {
  const ids = concatIds(row.prompt_ids, row.response_ids)
  const requestId = randomUUID()
  const request = {
    kind: 'chat' as const,
    // The least that an engine samples.
    body: { messages: [], max_tokens: 1, temperature: 0, ...(model !== undefined && { model }) },
    requestId,
    // The agent's session stays with the engine that has its prefix.
    sessionId: requestId,
    stream: false,
    record: { promptLogprobs: 0 },
    mustServe: model !== undefined,
    promptTokenIds: new PromptIds(ids),
  }
  let table: PromptTable | undefined
  let [engine, name] = ['the engine', model ?? '']
  try {
    for await (const batch of backend.generate(request, signal)) {
      for (const event of batch) {
        if (event.type === 'start') [engine, name] = [event.engine, event.model ?? (name || event.engine)]
        if (event.type === 'delta') table = event.details?.prompt_logprobs ?? table
      }
    }
  } finally {
    backend.releaseSession(requestId)
  }
  if (table === undefined)
    throw new ProxyError('engine_failed', `${engine} does not tell logprobs of a prompt`)
  return { logprobs: selectLogprobs(table, ids, row.prompt_ids.length, engine), model: name }
}

/** @param from the first token that must be told @throws ProxyError `engine_failed` */
function selectLogprobs(table: PromptTable, ids: Int32Array, from: number, engine: string): number[] {
  const logprobs: number[] = []
  let at = 0
  for (const [row, count] of table.counts.entries()) {
    const place = table.start + row
    const logprob = table.logprobs?.[at]
    if (place >= from && place < ids.length) {
      if (count === 0 || table.ids[at] !== ids[place] || logprob === undefined || Number.isNaN(logprob))
        throw new ProxyError(
          'engine_failed',
          `${engine} does not tell the logprob of token ${place} of a prompt`,
        )
      logprobs.push(logprob)
    }
    at += count
  }
  if (logprobs.length === ids.length - from) return logprobs
  const told = `${logprobs.length} of ${ids.length - from} tokens`
  throw new ProxyError('engine_failed', `${engine} tells the logprobs of ${told} of a prompt`)
}
