/** Responses that continue (`--continue-responses`) after the engine aborted them for new weights. */
import type { Test } from 'tap'
import { until } from '../../helpers/until.ts'
import { AGENTS, type Said } from '../parts/agents.ts'
import type { CoreCall, CoreLog } from '../parts/core-log.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import type { Mode } from '../parts/proxies.ts'
import { checkSession, getJson } from '../parts/record.ts'
import { untilWeights } from './interrupted.ts'

/** A part of a response, as the turn's annotations list it. */
interface EngineRequest {
  start: number
  end: number
  weight_version: string | null
  end_reason: string
}

interface Options {
  modes: readonly Mode[]
  /** Folders of models of the same shape, whose weights are loaded in turn. */
  models: readonly string[]
  /** The number of aborts. */
  cuts: number
  seed: number
}

const TOKENS = 120
/** A busy machine may end a response before its cut; such a request does not count. */
const TRIES = 3
/** Each third abort is for new weights. */
const RELOAD_EVERY = 3

/**
 * Aborts each response once or twice at random tokens, and checks that agents receive one response, and that the turn's
 * ids, logprobs and weights are what the core sampled in all parts.
 */
export async function checkContinued(
  t: Test,
  vllm: EngineProcess,
  { modes, models, cuts, seed }: Options,
): Promise<void> {
  let version = Date.now()
  let cut = 0
  const setVersion = async () => {
    await vllm.post('/update_weight_version', { new_version: String(version) })
    await Promise.all(modes.map((mode) => untilWeights(mode, String(version))))
  }
  const abort = async () => {
    await vllm.post('/pause?mode=abort')
    if (cut % RELOAD_EVERY === 0) {
      version += 1
      const weights_path = models[version % models.length]
      await vllm.post('/collective_rpc', { method: 'reload_weights', kwargs: { weights_path } })
      await setVersion()
    }
    await vllm.post('/resume')
    cut += 1
  }
  await setVersion()
  let continued = 0
  let parts = 0
  for (let number = 0; cut < cuts && number < TRIES * cuts; number += 1) {
    const dice = new Dice(seed + number)
    const mode = modes[number % modes.length]!
    const dialect = dice.pick(Object.keys(AGENTS))
    const stream = dice.chance(0.7)
    const what = `${mode.name}, ${dialect}, ${stream ? 'streamed' : 'complete'}`
    const sessionId = `continued-${mode.name}-${number}`
    const before = vllm.core.calls().length
    let said: Said | Error | undefined
    const sampling = { temperature: 1, max_tokens: TOKENS, ignore_eos: true }
    const received = new AGENTS[dialect]!(dice)
      .call(`${mode.url}/${sessionId}`, { stream, sampling })
      .catch((error: Error) => error)
      .then((value) => {
        said = value
      })
    const aborts = dice.int(1, 2)
    for (let at = 0; at < aborts; at += 1) {
      const sampled = dice.int(1, TOKENS / 4)
      await until(() => {
        const calls = vllm.core.calls().slice(before)
        return said !== undefined || (calls.length > at && calls.at(-1)!.ids.length >= sampled)
      })
      if (said === undefined) await abort()
    }
    await received
    if (said === undefined || said instanceof Error) {
      t.fail(`${what}: the agent gets ${said}`)
      continue
    }
    const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
    const requests: EngineRequest[] | undefined = turns[0].annotations.engine_requests
    if (requests === undefined) continue
    continued += 1
    parts += requests.length
    t.ok(isContiguous(requests, turns[0].completion_token_ids.length), `${what}: parts`, { requests })
    const core = { find: () => joinParts(vllm.core, turns[0], requests) }
    const { wrong } = await checkSession(mode.url, sessionId, [{ dialect, stream, said }], core)
    t.strictSame(wrong, [], `${what}: ${requests.map(({ end, end_reason }) => `${end} ${end_reason}`)}`)
    for (const { start, end, weight_version } of requests) {
      const used = new Set(core.find()?.weights.slice(start, end))
      if (end > start) t.strictSame([...used], [weight_version], `${what}: the weights of ${start} to ${end}`)
    }
  }
  t.ok(continued >= cuts / 4, `${continued} responses continued, in ${parts} parts, after ${cut} aborts`)
}

/** Returns whether each part begins where the one before ended, and all but the last were aborted. */
function isContiguous(requests: readonly EngineRequest[], length: number): boolean {
  return requests.every(({ start, end, end_reason }, at) => {
    const next = requests[at + 1]
    const follows = start === (requests[at - 1]?.end ?? 0)
    return follows && (next === undefined ? end === length : end_reason === 'abort')
  })
}

/** Returns the core's requests of a response as one, without what it sampled and no part received. */
function joinParts(
  log: CoreLog,
  turn: { prompt_token_ids: number[]; completion_token_ids: number[] },
  requests: readonly EngineRequest[],
): CoreCall | undefined {
  const ids = turn.completion_token_ids
  let joined: CoreCall | undefined
  for (const [at, { start, end }] of requests.entries()) {
    const part = log.find([...turn.prompt_token_ids, ...ids.slice(0, start)], ids.slice(start, end))
    if (part === undefined) return undefined
    const length = at === requests.length - 1 ? part.ids.length : end - start
    const { prompt, params } = joined ?? part
    joined = {
      ...part,
      prompt,
      // The limit of a later part is what the earlier ones left.
      params: { ...params, max_tokens: (part.params.max_tokens as number) + start },
      ids: [...(joined?.ids ?? []), ...part.ids.slice(0, length)],
      logprobs: [...(joined?.logprobs ?? []), ...part.logprobs.slice(0, length)],
      weights: [...(joined?.weights ?? []), ...part.weights.slice(0, length)],
    }
  }
  return joined
}
