/** Responses that continue (`--continue-responses`) after the engine aborted them for new weights. */
import type { Test } from 'tap'
import { until } from '../../helpers/until.ts'
import { AGENTS, type AgentOutput } from './agents.ts'
import { checkSession, getJson } from './check-session.ts'
import type { CoreLog, CoreRequest } from './core-log.ts'
import { Dice } from './dice.ts'
import { type Mode, waitForWeights } from './proxies.ts'

/** A part of a response, as the turn's annotations list it. */
interface EngineRequest {
  start: number
  end: number
  weight_version: string | null
  end_reason: string
}

/** An engine whose weights a trainer replaces. */
export interface UpdatableEngine {
  core: CoreLog
  /** Aborts all requests, and queues new ones. */
  pause(): Promise<unknown>
  /** @param model folder with the weights */
  loadWeights(model: string, version: string): Promise<unknown>
  resume(): Promise<unknown>
}

interface Options {
  modes: readonly Mode[]
  /** Dialects of which responses continue. */
  dialects: readonly string[]
  /** Folders of models of the same shape, whose weights are loaded in turn. */
  models: readonly string[]
  /** Length of a response. It must last until the test has seen its first quarter. */
  tokens: number
  /** Whether all responses are streamed. Default: most of them. */
  streamsOnly?: boolean
  /** The number of aborts. */
  cuts: number
  seed: number
}

/** Attempts per cut: on a busy machine a response may end before its cut. */
const ATTEMPTS_PER_CUT = 3
/** One abort of three loads new weights. */
const RELOAD_EVERY = 3

/**
 * Aborts each response once or twice at random tokens. Checks that the agent receives one response, and that the ids,
 * logprobs and weights of the turn equal the core's samples of all parts.
 */
export async function checkContinuation(
  t: Test,
  engine: UpdatableEngine,
  { modes, dialects, models, tokens, streamsOnly = false, cuts, seed }: Options,
): Promise<void> {
  const { core } = engine
  let version = Date.now()
  let cut = 0
  const update = async () => {
    version += 1
    await engine.loadWeights(models[version % models.length]!, String(version))
    await Promise.all(modes.map((mode) => waitForWeights(mode, String(version))))
  }
  const abort = async () => {
    await engine.pause()
    if (cut % RELOAD_EVERY === 0) await update()
    await engine.resume()
    cut += 1
  }
  await update()
  let continued = 0
  let parts = 0
  for (let number = 0; cut < cuts && number < ATTEMPTS_PER_CUT * cuts; number += 1) {
    const dice = new Dice(seed + number)
    const mode = modes[number % modes.length]!
    const dialect = dice.pick(dialects)
    const stream = dice.chance(0.7) || streamsOnly
    const what = `${mode.name}, ${dialect}, ${stream ? 'streamed' : 'complete'}`
    const sessionId = `continued-${mode.name}-${number}`
    const before = core.requests().length
    let response: AgentOutput | Error | undefined
    const sampling = { temperature: 1, max_tokens: tokens, ignore_eos: true }
    const received = new AGENTS[dialect]!(dice)
      .sendRequest(`${mode.url}/${sessionId}`, { stream, sampling })
      .catch((error: Error) => error)
      .then((value) => {
        response = value
      })
    const aborts = dice.int(1, 2)
    for (let index = 0; index < aborts; index += 1) {
      const sampled = dice.int(1, tokens / 4)
      await until(() => {
        // Health checks and checks of the prompt sample one token.
        const requests = core
          .requests()
          .slice(before)
          .filter(({ params }) => Number(params.max_tokens) > 1)
        return response !== undefined || (requests.length > index && requests.at(-1)!.ids.length >= sampled)
      })
      if (response === undefined) await abort()
    }
    await received
    if (response === undefined || response instanceof Error) {
      t.fail(`${what}: the agent receives ${response}`)
      continue
    }
    const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
    const requests: EngineRequest[] | undefined = turns[0].annotations.engine_requests
    if (requests === undefined) continue
    continued += 1
    parts += requests.length
    t.ok(isContiguous(requests, turns[0].completion_token_ids.length), `${what}: parts`, { requests })
    const joined = { find: () => joinParts(core, turns[0], requests) }
    const { wrong } = await checkSession(mode.url, sessionId, [{ dialect, stream, response }], joined)
    t.strictSame(wrong, [], `${what}: ${requests.map(({ end, end_reason }) => `${end} ${end_reason}`)}`)
    for (const { start, end, weight_version } of requests) {
      const used = new Set(joined.find()?.weights.slice(start, end))
      if (end > start) t.strictSame([...used], [weight_version], `${what}: the weights of ${start} to ${end}`)
    }
  }
  t.ok(continued >= cuts / 4, `${continued} responses continued, in ${parts} parts, after ${cut} aborts`)
}

/** Returns whether each part starts at the end of the previous one, and all but the last were aborted. */
function isContiguous(requests: readonly EngineRequest[], length: number): boolean {
  return requests.every(({ start, end, end_reason }, index) => {
    const next = requests[index + 1]
    const follows = start === (requests[index - 1]?.end ?? 0)
    return follows && (next === undefined ? end === length : end_reason === 'abort')
  })
}

/** Joins the core's requests of a response, without tokens that the core sampled and no part contains. */
function joinParts(
  log: CoreLog,
  turn: { prompt_token_ids: number[]; completion_token_ids: number[] },
  requests: readonly EngineRequest[],
): CoreRequest | undefined {
  const ids = turn.completion_token_ids
  let joined: CoreRequest | undefined
  for (const [index, { start, end }] of requests.entries()) {
    const part = log.find([...turn.prompt_token_ids, ...ids.slice(0, start)], ids.slice(start, end))
    if (part === undefined) return undefined
    const length = index === requests.length - 1 ? part.ids.length : end - start
    const { prompt, params } = joined ?? part
    joined = {
      ...part,
      prompt,
      // The limit of a later part excludes the tokens of the earlier ones.
      params: { ...params, max_tokens: (part.params.max_tokens as number) + start },
      ids: [...(joined?.ids ?? []), ...part.ids.slice(0, length)],
      logprobs: [...(joined?.logprobs ?? []), ...part.logprobs.slice(0, length)],
      weights: [...(joined?.weights ?? []), ...part.weights.slice(0, length)],
    }
  }
  return joined
}
