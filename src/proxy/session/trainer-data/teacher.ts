/**
 * Scoring by a teacher: computes the teacher's logprob of each sampled token of a session, for on-policy distillation.
 * Any engine or worker that accepts token ids can be the teacher. The proxy sends each row as a prompt with
 * `prompt_logprobs` and discards the one token that the engine samples.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import { type PromptTable, packTokenData } from '../../../protocol/token-data/token-data.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type { TurnDetails, TurnStore } from '../../store/port/turn-store.ts'
import { type Trajectory, TrajectoryBuilder } from '../trajectories/trajectories.ts'

/** The options of {@link scoreSession}. */
interface ScoreOptions {
  /** The model of the teacher; only engines that list it are used. Absent: any available engine. */
  readonly model?: string
  /** The teacher's name, which is stored with the logprobs. Absent: the model name that the engine reports. */
  readonly teacher?: string
}

/** The numbers of scored rows, turns and tokens. */
export interface ScoringResult {
  /** The name of the teacher; null if there was no row to score. */
  readonly teacher: string | null
  readonly rows: number
  readonly turns: number
  readonly tokens: number
  /**
   * The numbers of rows that cannot be scored: those without exact ids, and those with images, because ids do not
   * contain the images.
   */
  readonly left_out: { readonly inexact: number; readonly images: number }
}

/**
 * Scores all rows of the session, including side requests, and stores the logprobs as token data of the turns, in place
 * of those of an earlier teacher. If one row cannot be scored, nothing is stored.
 * @throws ProxyError as `Backend.generate`; `engine_failed` for an engine that does not return prompt logprobs;
 *   `turn_not_found` for a turn that was removed meanwhile
 */
export async function scoreSession(
  { store, backend }: { store: Pick<TurnStore, 'readSteps' | 'addDetails'>; backend: Backend },
  sessionId: string,
  options: ScoreOptions,
  signal: AbortSignal,
): Promise<ScoringResult> {
  const builder = new TrajectoryBuilder({ sideCalls: true })
  for await (const turn of store.readSteps(sessionId)) builder.add(turn)
  const scored: TurnDetails[] = []
  const leftOut = { inexact: 0, images: 0 }
  let [teacher, rows, tokens]: [string | null, number, number] = [null, 0, 0]
  for (const row of builder.assembleRows({}, null)) {
    const spans = row.turns.filter(({ trained, start, end }) => trained && end > start)
    if (!row.exact) leftOut.inexact += 1
    else if (row.images) leftOut.images += 1
    if (!row.exact || row.images || spans.length === 0) continue
    const { logprobs, model } = await scoreRow(backend, row, options, signal)
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

/** Scores one row. @returns the logprobs of its response tokens, and the model that the engine reports */
async function scoreRow(
  backend: Backend,
  row: Trajectory,
  { model }: ScoreOptions,
  signal: AbortSignal,
): Promise<{ logprobs: readonly number[]; model: string }> {
  const ids = concatIds(row.prompt_ids, row.response_ids)
  const requestId = randomUUID()
  const request = {
    kind: 'chat' as const,
    // Engines sample at least one token.
    body: { messages: [], max_tokens: 1, temperature: 0, ...(model !== undefined && { model }) },
    requestId,
    // The session id differs from the agent's, whose session thus stays assigned to the engine that caches its prefix.
    sessionId: requestId,
    stream: false,
    record: { promptLogprobs: 0 },
    mustServe: model !== undefined,
    promptTokenIds: new PromptIds(ids),
  }
  let table: PromptTable | undefined
  let [engine, name] = ['the engine', model ?? '']
  try {
    const write = (events: readonly GenerationEvent[]): undefined => {
      for (const event of events) {
        if (event.type === 'start') [engine, name] = [event.engine, event.model ?? (name || event.engine)]
        if (event.type === 'delta') table = event.details?.prompt_logprobs ?? table
      }
    }
    await backend.generate(request, { write }, signal)
  } finally {
    backend.releaseSession(requestId)
  }
  if (table === undefined)
    throw new ProxyError('engine_failed', `${engine} does not return logprobs of a prompt`)
  return { logprobs: selectLogprobs(table, ids, row.prompt_ids.length, engine), model: name }
}

/**
 * Returns the logprobs of the tokens of `ids` from index `from` on.
 * @throws ProxyError `engine_failed` if the engine did not report one of them
 */
function selectLogprobs(table: PromptTable, ids: Int32Array, from: number, engine: string): number[] {
  const logprobs: number[] = []
  let index = 0
  for (const [row, count] of table.counts.entries()) {
    const position = table.start + row
    const logprob = table.logprobs?.[index]
    if (position >= from && position < ids.length) {
      if (count === 0 || table.ids[index] !== ids[position] || logprob === undefined || Number.isNaN(logprob))
        throw new ProxyError(
          'engine_failed',
          `${engine} does not return the logprob of token ${position} of a prompt`,
        )
      logprobs.push(logprob)
    }
    index += count
  }
  if (logprobs.length === ids.length - from) return logprobs
  const counts = `${logprobs.length} of ${ids.length - from} tokens`
  throw new ProxyError('engine_failed', `${engine} returned the logprobs of ${counts} of a prompt`)
}
