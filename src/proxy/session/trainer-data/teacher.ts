/**
 * A teacher scores the sampled tokens of a session: it computes the logprob of each token, for on-policy distillation.
 * Any engine or worker that accepts token ids can be a teacher. The proxy sends a row as a prompt with
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

interface ScoreOptions {
  /** Model that the teacher must list. Absent: any available engine. */
  readonly model?: string
  /** Name under which the logprobs are stored. Absent: the model name that the engine reports. */
  readonly teacher?: string
}

export interface ScoringResult {
  /** Name of the teacher; null if there was nothing to score. */
  readonly teacher: string | null
  readonly rows: number
  readonly turns: number
  readonly tokens: number
  /** Rows that cannot be scored: rows without exact ids, and rows with images, which ids alone do not represent. */
  readonly left_out: { readonly inexact: number; readonly images: number }
}

/**
 * Scores all rows of the session, including side requests, and stores the logprobs as token data of the turns. They
 * replace those of an earlier teacher. Nothing is stored if scoring one row fails.
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

/** Scores one row and returns the logprobs of its response. */
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
    // Engines sample at least one token.
    body: { messages: [], max_tokens: 1, temperature: 0, ...(model !== undefined && { model }) },
    requestId,
    // A separate session id, so that the agent's session keeps its affinity to the engine with its prefix.
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
 * Selects the logprobs of `ids` from `from` on.
 * @param from index of the first token whose logprob is required
 * @throws ProxyError `engine_failed`
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
