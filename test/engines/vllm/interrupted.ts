/** Interrupted requests: agents that disconnect, and engines that pause, sleep, get other weights, or crash. */
import type { Test } from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
import { until } from '../../helpers/until.ts'
import { AGENTS, type Agent, type AgentOutput, MODEL } from '../parts/agents.ts'
import { checkSession, getJson } from '../parts/check-session.ts'
import type { CoreLog, CoreRequest } from '../parts/core-log.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import { getEngine, type Mode, waitForWeights } from '../parts/proxies.ts'

// biome-ignore lint/suspicious/noExplicitAny: the tests read responses of the sessions API as trainers do
type Json = any

/** The interruption happens after this many sampled tokens, far from the end. */
const INTERRUPT_AT_TOKENS = 20
const SHORT_TOKENS = 250
const LONG_TOKENS = 1_500
/** Tokens of the context that remain beside a prompt. */
const MAX_TOKENS = 3_500
const STEP_PARAMS = { max_tokens: 20, ignore_eos: true }

/** A long request in flight, of a new agent. */
interface InFlightRequest {
  sessionId: string
  log: CoreLog
  core: CoreRequest
  disconnect(): void
  /** The response that the agent received, or its error. */
  response: Promise<AgentOutput | Error>
}

let number = 0

interface StartOptions {
  dialect?: string
  stream?: boolean
  tokens?: number
  record?: string[]
}

/** Attempts to start a request: it fails if a busy machine misses a health check of its engine. */
const ATTEMPTS = 3

async function startRequest(log: CoreLog, mode: Mode, options: StartOptions = {}): Promise<InFlightRequest> {
  for (let attempt = 1; ; attempt += 1) {
    const running = await tryToStart(log, mode, options)
    if (!(running instanceof Error)) return running
    if (attempt === ATTEMPTS) throw running
  }
}

/** @returns an error if the request ended before the core started it */
async function tryToStart(
  log: CoreLog,
  mode: Mode,
  { dialect = 'chat', stream = true, tokens = SHORT_TOKENS, record = [] }: StartOptions,
): Promise<InFlightRequest | Error> {
  number += 1
  const sessionId = `interrupted-${mode.name}-${process.pid}-${number}`
  if (record.length > 0) {
    const body = JSON.stringify({ session_id: sessionId, record })
    // A new connection, because the other end may just be closing an idle one.
    const headers = { 'content-type': 'application/json', connection: 'close' }
    await fetch(`${mode.url}/sessions`, { method: 'POST', headers, body })
  }
  const before = log.requests().length
  const agent: Agent = new AGENTS[dialect]!(new Dice(number))
  const control = new AbortController()
  const sampling = { temperature: 1, max_tokens: tokens, min_tokens: tokens, ignore_eos: true }
  const options = { stream, sampling, signal: control.signal }
  let early: Error | undefined
  let isOver = false
  const response = agent.sendRequest(`${mode.url}/${sessionId}`, options).catch((error: Error) => {
    early = error
    return error
  })
  void response.then(() => {
    isOver = true
  })
  const findStarted = () =>
    log
      .requests()
      .slice(before)
      .find(({ ids }) => ids.length >= INTERRUPT_AT_TOKENS)
  await until(() => findStarted() ?? isOver)
  const core = findStarted()
  if (core === undefined)
    return early ?? new Error(`${sessionId}: the response ended before the core had sampled enough`)
  // The core is ahead of the proxy, by seconds on a busy machine.
  if (stream) await until(async () => isOver || (await countSampledTokens(mode, sessionId)) > 0)
  return { sessionId, log, core, disconnect: () => control.abort(), response }
}

/** Counts the tokens of the session's open turn that the proxy has received. */
async function countSampledTokens({ url }: Mode, sessionId: string): Promise<number> {
  const { turns } = await getJson(`${url}/admin/turns`)
  const turn = turns.find((open: Json) => open.session_id === sessionId)
  return turn?.sampled_tokens ?? 0
}

/** Returns the only turn of the session, once it has ended. */
async function getTurn(mode: Mode, { sessionId }: InFlightRequest): Promise<Json> {
  return until(async () => {
    const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
    return turns[0]?.status !== 'open' && turns[0]
  })
}

/** Checks that the recorded turn is a prefix of its request's sample. */
function checkPrefix(t: Test, turn: Json, { core, log }: InFlightRequest, what: string): void {
  log.requests()
  const { completion_token_ids: ids, completion_logprobs: logprobs } = turn
  t.strictSame(turn.prompt_token_ids, core.prompt, `${what}: the prompt`)
  t.ok(
    ids.length >= 1 && ids.join() === core.ids.slice(0, ids.length).join(),
    `${what}: ${ids.length} ids as sampled`,
  )
  const isNear = logprobs.every(
    (value: number, index: number) => Math.abs(value - core.logprobs[index]!) < 1e-6,
  )
  t.ok(logprobs.length === ids.length && isNear, `${what}: logprobs as sampled`)
}

/**
 * Checks in every dialect that a disconnect of the agent frees the engine long before the response would have ended.
 */
export async function checkDisconnects(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  for (const [modeIndex, mode] of modes.entries()) {
    const requests: { what: string; stream: boolean; running: InFlightRequest; disconnectedMs: number }[] = []
    for (const [dialectIndex, dialect] of Object.keys(AGENTS).entries())
      for (const stream of IS_FULL ? [true, false] : [(modeIndex + dialectIndex) % 2 === 0]) {
        const what = `${mode.name}, ${dialect}, ${stream ? 'streamed' : 'complete'}`
        const running = await startRequest(vllm.core, mode, { dialect, stream, tokens: LONG_TOKENS })
        running.disconnect()
        requests.push({ what, stream, running, disconnectedMs: Date.now() })
      }
    for (const { what, stream, running } of requests) {
      const turn = await getTurn(mode, running)
      t.equal(turn.status, 'aborted', what)
      if (stream) checkPrefix(t, turn, running, what)
    }
    // A step of the engine samples a token for each running request, and none for an aborted one.
    const step = () => vllm.post('/v1/completions', { model: MODEL, prompt: 'the', ...STEP_PARAMS })
    const countSampled = () => {
      vllm.core.requests()
      return requests.map(({ running }) => running.core.ids.length)
    }
    for (let before: number[] = []; before.join() !== countSampled().join(); await step())
      before = countSampled()
    for (const { what, running } of requests)
      t.ok(running.core.ids.length < LONG_TOKENS, `${what}: the engine stopped at ${running.core.ids.length}`)
    const tookMs = requests.map(({ running, disconnectedMs }) =>
      Math.round(running.core.lastAtMs - disconnectedMs),
    )
    // The duration depends on the load of the machine.
    t.comment(`${mode.name}: the engine was free after ${tookMs.sort((a, b) => a - b).join(', ')} ms`)
  }
}

/** Replaces weights while each mode has a request in flight, with each way to pause. Requires vLLM's dev mode. */
export async function checkWeights(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  models: readonly string[],
): Promise<void> {
  let version = Date.now()
  const setVersion = () => vllm.post('/update_weight_version', { new_version: String(version) })
  const waitForVersion = () => Promise.all(modes.map((mode) => waitForWeights(mode, String(version))))
  await setVersion()
  for (const [pauseIndex, pause] of (['keep', 'wait', 'abort'] as const).entries())
    for (const round of IS_FULL ? [0, 1] : [0]) {
      // A complete response reports no weights: the turn starts with those of the last health check.
      await waitForVersion()
      const isStream = (index: number) => (index + pauseIndex + round) % 2 === 0
      const requests = await startAndPause(vllm, modes, `/pause?mode=${pause}`, isStream)
      version += 1
      // A complete response gets the weights of the time at which the client reads it.
      if (pause === 'wait') for (const { mode, running } of requests) await getTurn(mode, running)
      await vllm.post('/collective_rpc', {
        method: 'reload_weights',
        kwargs: { weights_path: models[version % models.length] },
      })
      await setVersion()
      // A complete response ends with the weights of the last health check.
      await waitForVersion()
      await vllm.post('/resume')
      for (const request of requests) await checkReplaced(t, request, vllm.core, { pause, version })
    }
}

interface ModeRequest {
  mode: Mode
  stream: boolean
  running: InFlightRequest
}

async function checkReplaced(
  t: Test,
  { mode, stream, running }: ModeRequest,
  core: CoreLog,
  { pause, version }: { pause: string; version: number },
): Promise<void> {
  const what = `${mode.name}, pause ${pause}, ${stream ? 'streamed' : 'complete'}`
  const response = await running.response
  const turn = await getTurn(mode, running)
  if (pause === 'abort') {
    t.ok(response instanceof Error, `${what}: the agent receives an error`)
    t.equal(turn.status, 'failed', what)
    if (stream) checkPrefix(t, turn, running, what)
    return
  }
  if (response instanceof Error) throw response
  const sent = [{ dialect: 'chat', stream, response }]
  t.strictSame((await checkSession(mode.url, running.sessionId, sent, core)).wrong, [], what)
  const used = running.core.weights
  t.equal(
    used.at(-1) === String(version),
    pause === 'keep',
    `${what}: the core used ${used[0]}..${used.at(-1)}`,
  )
}

/** Routes that resume the engine, by the route that paused it. */
const RESUME_ROUTES = {
  '/pause?mode=keep': '/resume',
  '/pause?mode=wait': '/resume',
  '/pause?mode=abort': '/resume',
  '/sleep?level=0&mode=keep': '/wake_up',
}
type PauseRoute = keyof typeof RESUME_ROUTES

/**
 * Starts a request in each mode, and pauses the engine. If a request has ended before the pause, as on a busy or a fast
 * machine, it starts requests of twice the length, up to the length of the context.
 * @param isStream whether the request of a mode is streamed
 */
async function startAndPause(
  vllm: EngineProcess,
  modes: readonly Mode[],
  pauseRoute: PauseRoute,
  isStream: (index: number) => boolean,
): Promise<ModeRequest[]> {
  for (let tokens = SHORT_TOKENS; ; tokens = Math.min(2 * tokens, MAX_TOKENS)) {
    const requests: ModeRequest[] = []
    for (const [index, mode] of modes.entries()) {
      const stream = isStream(index)
      const running = await startRequest(vllm.core, mode, { stream, tokens, record: ['weight_versions'] })
      requests.push({ mode, stream, running })
    }
    await vllm.post(pauseRoute)
    vllm.core.requests()
    const areInFlight = requests.every(({ running }) => running.core.ids.length < tokens)
    // With "wait", the engine responds when all requests have ended.
    if (areInFlight || pauseRoute === '/pause?mode=wait' || tokens === MAX_TOKENS) return requests
    await vllm.post(RESUME_ROUTES[pauseRoute])
    for (const { mode, running } of requests) await getTurn(mode, running)
  }
}

/**
 * Checks that a paused or sleeping engine receives no requests: new ones wait until it resumes, and requests in flight
 * continue.
 */
export async function checkPaused(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  // Each turn must start with the weights of the core.
  const version = String(Date.now())
  await vllm.post('/update_weight_version', { new_version: version })
  await Promise.all(modes.map((mode) => waitForWeights(mode, version)))
  for (const pauseRoute of ['/pause?mode=keep', '/sleep?level=0&mode=keep'] as const) {
    const requests = await startAndPause(vllm, modes, pauseRoute, () => true)
    await Promise.all(modes.map((mode) => until(async () => (await getEngine(mode)).unavailable)))
    const before = vllm.core.requests().length
    number += 1
    const sampling = { max_tokens: 3 }
    const waiting = modes.map(({ url }) =>
      new AGENTS.chat!(new Dice(1)).sendRequest(`${url}/held-${number}`, { stream: false, sampling }),
    )
    await Promise.all(modes.map(({ url }) => until(async () => (await getJson(`${url}/health`)).queued > 0)))
    t.equal(vllm.core.requests().length, before, `${pauseRoute}: the engine receives no request`)
    await vllm.post(RESUME_ROUTES[pauseRoute])
    for (const { finish } of await Promise.all(waiting))
      t.equal(finish, 'length', `${pauseRoute}: the request was served when it resumed`)
    for (const { mode, running } of requests) {
      const response = await running.response
      if (response instanceof Error) throw response
      const sent = [{ dialect: 'chat', stream: true, response }]
      const { wrong } = await checkSession(mode.url, running.sessionId, sent, vllm.core)
      t.strictSame(wrong, [], `${mode.name}, ${pauseRoute}`)
    }
  }
}

/**
 * Checks that agents receive errors when the engine crashes under load, and that it serves after its restart.
 * @param restart returns when the engine serves again
 */
export async function checkCrash(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  restart: () => Promise<void>,
): Promise<void> {
  const requests: { mode: Mode; stream: boolean; running: InFlightRequest }[] = []
  for (const mode of modes)
    for (const stream of IS_FULL ? [true, true, false] : [true, false]) {
      const running = await startRequest(vllm.core, mode, { stream, tokens: LONG_TOKENS })
      requests.push({ mode, stream, running })
    }
  await vllm.kill()
  for (const { mode, stream, running } of requests) {
    // A request whose response has not started waits for an engine.
    if (!stream) {
      running.disconnect()
      continue
    }
    t.ok((await running.response) instanceof Error, `${mode.name}: the agent receives an error`)
    const turn = await getTurn(mode, running)
    t.match(turn, { status: 'failed', error: { code: 'engine_lost' } }, mode.name)
    checkPrefix(t, turn, running, mode.name)
  }
  await restart()
  for (const mode of modes) {
    await until(async () => (await getEngine(mode)).healthy)
    const agent = new AGENTS.chat!(new Dice(2))
    const response = await agent.sendRequest(`${mode.url}/restarted`, {
      stream: true,
      sampling: { max_tokens: 5 },
    })
    const sent = [{ dialect: 'chat', stream: true, response }]
    t.strictSame(
      (await checkSession(mode.url, 'restarted', sent, vllm.core)).wrong,
      [],
      `${mode.name}: served again`,
    )
  }
}
