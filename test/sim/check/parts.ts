/** Checks turns whose response continued after a cut: the parts together equal the sample of one request. */
import type { SimEngine } from '../actors/engine.ts'
import type { Generation } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import { type EngineRequest, isSame, type RecordedTurn } from './recorded-session.ts'

const MAX_PARTS = 8
/** The end reasons after which a response continues. */
const CUTS = ['abort', 'engine_lost', 'worker_lost', 'shutting_down']

export function checkParts(
  world: World,
  { turn, requestKey, engines }: { turn: RecordedTurn; requestKey: string; engines: readonly SimEngine[] },
  parts: readonly EngineRequest[],
): void {
  const { completion_token_ids: ids, status } = turn
  const report = (violation: string) => world.reportViolation(`the turn of ${requestKey} ${violation}`)
  const isComplete = status === 'completed'
  const starts = [0, ...parts.slice(0, -1).map(({ end }) => end)]
  const areContiguous = isSame(
    parts.map(({ start }) => start),
    starts,
  )
  if (!areContiguous || parts.at(-1)!.end !== ids.length)
    report(`has parts with a gap or an overlap: ${JSON.stringify(parts)}`)
  if (parts.length < 2 || parts.length > MAX_PARTS) report(`has ${parts.length} parts`)
  if (new Set(parts.map(({ request_id: id }) => id)).size < parts.length)
    report('has two parts with the same request id')
  for (const { end_reason: reason } of parts.slice(0, -1))
    if (!CUTS.includes(reason)) report(`continued after ${reason}`)
  let uncut: Generation['responseTokens'] | undefined
  for (const [at, part] of parts.entries()) {
    if (part.end === part.start) continue
    const isLast = isComplete && at === parts.length - 1
    const candidates = findGenerations(turn, part, { requestKey, engines, isLast })
    if (candidates.length === 0) {
      report(`has other ids or logprobs in part ${at + 1} than any engine sampled for it`)
      return
    }
    const wrong = candidates.map((generation) => findWrongVersion(part, generation))
    if (wrong.every(Boolean)) report(`has part ${at + 1} ${wrong[0]}`)
    // An equal sample of another attempt may have another limit.
    uncut ??= candidates.length === 1 ? candidates[0]!.responseTokens : undefined
  }
  const expected = uncut?.slice(0, isComplete ? undefined : ids.length).map(({ id }) => id)
  if (expected !== undefined && !isSame(ids, expected)) report('differs from the sample of one request')
}

/** Finds the generations that may have sampled a part. */
function findGenerations(
  { prompt_token_ids: prompt, completion_token_ids: ids, completion_logprobs: logprobs }: RecordedTurn,
  { start, end, end_reason: reason }: EngineRequest,
  { requestKey, engines, isLast }: { requestKey: string; engines: readonly SimEngine[]; isLast: boolean },
): Generation[] {
  const partPrompt = [...prompt, ...ids.slice(0, start)]
  return engines
    .flatMap(({ generations }) => generations)
    .filter((generation) => {
      // An engine that aborts a response reports all of its tokens.
      const reportsAll = isLast || reason === 'abort'
      if (generation.requestKey !== requestKey || (reportsAll && generation.tokens.length !== end - start))
        return false
      if (isLast && generation.tokens.length < generation.length) return false
      const tokens = generation.tokens.slice(0, end - start)
      const isRecorded = (recorded: readonly number[], actual: readonly number[]) =>
        isSame(recorded.slice(start, end), actual)
      return (
        isSame(generation.prompt, partPrompt) &&
        isRecorded(
          ids,
          tokens.map(({ id }) => id),
        ) &&
        isRecorded(
          logprobs,
          tokens.map(({ logprob }) => logprob),
        )
      )
    })
}

/**
 * Checks the weight version of a part: unknown, or one that sampled it. An older version is valid only if its engine
 * reports none.
 */
function findWrongVersion(
  { start, end, weight_version: version }: EngineRequest,
  { weights, versions, reports }: Generation,
): string | undefined {
  const used = new Set(weights.slice(0, end - start))
  const isRight = used.has(version!) && (used.size === 1 || reports.start)
  const isStale = versions.indexOf(version!) <= versions.indexOf(weights[0]!)
  if (version === null || isRight || (!reports.end && isStale)) return undefined
  return `with the weights ${version}, which were ${[...used]}`
}
