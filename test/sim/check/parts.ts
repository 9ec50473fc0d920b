/** Checks turns whose response was continued: its parts together are what one request would have sampled. */
import type { SimEngine } from '../actors/engine.ts'
import type { Served } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import { type EngineRequest, isSame, type TurnOnRecord } from './on-record.ts'

const MAX_PARTS = 8
/** The reasons for which a response continues. */
const CUTS = ['abort', 'engine_lost', 'worker_lost', 'shutting_down']

export function checkParts(
  world: World,
  { turn, call, engines }: { turn: TurnOnRecord; call: string; engines: readonly SimEngine[] },
  parts: readonly EngineRequest[],
): void {
  const { completion_token_ids: ids, status } = turn
  const violated = (promise: string) => world.violated(`the turn of ${call} ${promise}`)
  const isWhole = status === 'completed'
  const starts = [0, ...parts.slice(0, -1).map(({ end }) => end)]
  const areJoined = isSame(
    parts.map(({ start }) => start),
    starts,
  )
  if (!areJoined || parts.at(-1)!.end !== ids.length)
    violated(`has parts with a gap or an overlap: ${JSON.stringify(parts)}`)
  if (parts.length < 2 || parts.length > MAX_PARTS) violated(`has ${parts.length} parts`)
  if (new Set(parts.map(({ request_id: id }) => id)).size < parts.length)
    violated('has two parts of one request id')
  for (const { end_reason: reason } of parts.slice(0, -1))
    if (!CUTS.includes(reason)) violated(`continued after ${reason}`)
  let whole: Served['whole'] | undefined
  for (const [at, part] of parts.entries()) {
    if (part.end === part.start) continue
    const isLast = isWhole && at === parts.length - 1
    const sampled = findSampled(turn, part, { call, engines, isLast })
    if (sampled.length === 0) {
      violated(`has other ids or logprobs in part ${at + 1} than any engine sampled for it`)
      return
    }
    const wrong = sampled.map((served) => wrongVersion(part, served))
    if (wrong.every(Boolean)) violated(`has part ${at + 1} ${wrong[0]}`)
    // An equal sample of another attempt may have another limit.
    whole ??= sampled.length === 1 ? sampled[0]!.whole : undefined
  }
  const uncut = whole?.slice(0, isWhole ? undefined : ids.length).map(({ id }) => id)
  if (uncut !== undefined && !isSame(ids, uncut)) violated('is not what one request would have sampled')
}

/** Returns what engines sampled for a part. */
function findSampled(
  { prompt_token_ids: prompt, completion_token_ids: ids, completion_logprobs: logprobs }: TurnOnRecord,
  { start, end, end_reason: reason }: EngineRequest,
  { call, engines, isLast }: { call: string; engines: readonly SimEngine[]; isLast: boolean },
): Served[] {
  const seen = [...prompt, ...ids.slice(0, start)]
  return engines
    .flatMap(({ served }) => served)
    .filter((served) => {
      // An engine that aborts a response reports all of its tokens.
      const isWhole = isLast || reason === 'abort'
      if (served.call !== call || (isWhole && served.tokens.length !== end - start)) return false
      if (isLast && served.tokens.length < served.length) return false
      const tokens = served.tokens.slice(0, end - start)
      const has = (recorded: readonly number[], actual: readonly number[]) =>
        isSame(recorded.slice(start, end), actual)
      return (
        isSame(served.prompt, seen) &&
        has(
          ids,
          tokens.map(({ id }) => id),
        ) &&
        has(
          logprobs,
          tokens.map(({ logprob }) => logprob),
        )
      )
    })
}

/** Checks the weights of a part: unknown, or those that sampled it; older ones only if its engine reports none. */
function wrongVersion(
  { start, end, weight_version: version }: EngineRequest,
  { weights, versions, tells }: Served,
): string | undefined {
  const used = new Set(weights.slice(0, end - start))
  const isRight = used.has(version!) && (used.size === 1 || tells.start)
  const isStale = versions.indexOf(version!) <= versions.indexOf(weights[0]!)
  if (version === null || isRight || (!tells.end && isStale)) return undefined
  return `with the weights ${version}, which were ${[...used]}`
}
