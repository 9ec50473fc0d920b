/** Interrupted requests: agents that disconnect, and engines that pause, sleep, get other weights, or crash. */
import type { Test } from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
import { until } from '../../helpers/until.ts'
import { AGENTS, type Agent, type AgentOutput, MODEL } from '../parts/agents.ts'
import type { CoreCall, CoreLog } from '../parts/core-log.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import { getEngine, type Mode, untilWeights } from '../parts/proxies.ts'
import { checkSession, getJson } from '../parts/record.ts'

// biome-ignore lint/suspicious/noExplicitAny: answers of the sessions API are read as their readers do
type Json = any

/** The interruption happens once this many tokens were sampled, far from the end. */
const BEGUN = 20
const SHORT = 250
const FAR = 1_500
/** Number of tokens in the context beside a prompt. */
const LONGEST = 3_500
const STEPS = { max_tokens: 20, ignore_eos: true }

/** A long request of a new agent that the core has started. */
interface Running {
  sessionId: string
  log: CoreLog
  core: CoreCall
  leave(): void
  /** The response that the agent received, or its error. */
  answer: Promise<AgentOutput | Error>
}

let number = 0

interface Begun {
  dialect?: string
  stream?: boolean
  tokens?: number
  record?: string[]
}

/** A busy machine may miss a health check of its engine: the request is then repeated. */
const TRIES = 3

async function begin(log: CoreLog, mode: Mode, how: Begun = {}): Promise<Running> {
  for (let tries = 1; ; tries += 1) {
    const running = await tryToBegin(log, mode, how)
    if (!(running instanceof Error)) return running
    if (tries === TRIES) throw running
  }
}

/** @returns an error if the request ended before the core had started it */
async function tryToBegin(
  log: CoreLog,
  mode: Mode,
  { dialect = 'chat', stream = true, tokens = SHORT, record = [] }: Begun,
): Promise<Running | Error> {
  number += 1
  const sessionId = `interrupted-${mode.name}-${process.pid}-${number}`
  if (record.length > 0) {
    const body = JSON.stringify({ session_id: sessionId, record })
    // A new connection: the other end may just be closing an idle one.
    const headers = { 'content-type': 'application/json', connection: 'close' }
    await fetch(`${mode.url}/sessions`, { method: 'POST', headers, body })
  }
  const before = log.calls().length
  const agent: Agent = new AGENTS[dialect]!(new Dice(number))
  const control = new AbortController()
  const sampling = { temperature: 1, max_tokens: tokens, min_tokens: tokens, ignore_eos: true }
  const options = { stream, sampling, signal: control.signal }
  let early: Error | undefined
  let isOver = false
  const response = agent.call(`${mode.url}/${sessionId}`, options).catch((error: Error) => {
    early = error
    return error
  })
  void response.then(() => {
    isOver = true
  })
  const begun = () =>
    log
      .calls()
      .slice(before)
      .find(({ ids }) => ids.length >= BEGUN)
  await until(() => begun() ?? isOver)
  const core = begun()
  if (core === undefined)
    return early ?? new Error(`${sessionId}: a response came before the core had started`)
  // The core is ahead of the proxy, by seconds on a busy machine.
  if (stream) await until(async () => isOver || (await sampledSoFar(mode, sessionId)) > 0)
  return { sessionId, log, core, leave: () => control.abort(), answer: response }
}

/** Returns how many tokens of the session's open request have reached the proxy. */
async function sampledSoFar({ url }: Mode, sessionId: string): Promise<number> {
  const { turns } = await getJson(`${url}/admin/turns`)
  const turn = turns.find((open: Json) => open.session_id === sessionId)
  return turn?.sampled_tokens ?? 0
}

/** Returns the only turn of the session, once it has ended. */
async function getTurn(mode: Mode, { sessionId }: Running): Promise<Json> {
  return until(async () => {
    const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
    return turns[0]?.status !== 'open' && turns[0]
  })
}

/** Checks that the recorded turn is a prefix of what its request sampled. */
function checkPrefix(t: Test, turn: Json, { core, log }: Running, what: string): void {
  log.calls()
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
 * Checks that an agent that disconnects frees the engine long before its response would have ended, in every dialect.
 */
export async function checkLeaving(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  for (const [modeAt, mode] of modes.entries()) {
    const calls: { what: string; stream: boolean; running: Running; leftMs: number }[] = []
    for (const [dialectAt, dialect] of Object.keys(AGENTS).entries())
      for (const stream of IS_FULL ? [true, false] : [(modeAt + dialectAt) % 2 === 0]) {
        const what = `${mode.name}, ${dialect}, ${stream ? 'streamed' : 'whole'}`
        const running = await begin(vllm.core, mode, { dialect, stream, tokens: FAR })
        running.leave()
        calls.push({ what, stream, running, leftMs: Date.now() })
      }
    for (const { what, stream, running } of calls) {
      const turn = await getTurn(mode, running)
      t.equal(turn.status, 'aborted', what)
      if (stream) checkPrefix(t, turn, running, what)
    }
    // A step of the engine samples a token for each running request. An aborted request gets none.
    const step = () => vllm.post('/v1/completions', { model: MODEL, prompt: 'the', ...STEPS })
    const countSampled = () => {
      vllm.core.calls()
      return calls.map(({ running }) => running.core.ids.length)
    }
    for (let before: number[] = []; before.join() !== countSampled().join(); await step())
      before = countSampled()
    for (const { what, running } of calls)
      t.ok(running.core.ids.length < FAR, `${what}: the engine stopped at ${running.core.ids.length}`)
    const tookMs = calls.map(({ running, leftMs }) => Math.round(running.core.lastAtMs - leftMs))
    // The duration depends on the load of the machine.
    t.comment(`${mode.name}: the engine was free after ${tookMs.sort((a, b) => a - b).join(', ')} ms`)
  }
}

/** Replaces weights while each mode has a request running, with each way to pause; needs vLLM's dev mode. */
export async function checkWeights(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  models: readonly string[],
): Promise<void> {
  let version = Date.now()
  const setVersion = () => vllm.post('/update_weight_version', { new_version: String(version) })
  const areStamped = () => Promise.all(modes.map((mode) => untilWeights(mode, String(version))))
  await setVersion()
  for (const [pauseAt, pause] of (['keep', 'wait', 'abort'] as const).entries())
    for (const round of IS_FULL ? [0, 1] : [0]) {
      // A complete response reports no weights: its request started with those of the last health check.
      await areStamped()
      const isStream = (index: number) => (index + pauseAt + round) % 2 === 0
      const requests = await beginAndHold(vllm, modes, `/pause?mode=${pause}`, isStream)
      version += 1
      // A complete response that the client has not read yet gets the weights of the time when it is read.
      if (pause === 'wait') for (const { mode, running } of requests) await getTurn(mode, running)
      await vllm.post('/collective_rpc', {
        method: 'reload_weights',
        kwargs: { weights_path: models[version % models.length] },
      })
      await setVersion()
      // The end of a complete response is stamped with the weights of the last health check.
      await areStamped()
      await vllm.post('/resume')
      for (const request of requests) await checkReplaced(t, request, vllm.core, { pause, version })
    }
}

interface ModeRequest {
  mode: Mode
  stream: boolean
  running: Running
}

async function checkReplaced(
  t: Test,
  { mode, stream, running }: ModeRequest,
  core: CoreLog,
  { pause, version }: { pause: string; version: number },
): Promise<void> {
  const what = `${mode.name}, pause ${pause}, ${stream ? 'streamed' : 'complete'}`
  const response = await running.answer
  const turn = await getTurn(mode, running)
  if (pause === 'abort') {
    t.ok(response instanceof Error, `${what}: the agent gets an error`)
    t.equal(turn.status, 'failed', what)
    if (stream) checkPrefix(t, turn, running, what)
    return
  }
  if (response instanceof Error) throw response
  const made = [{ dialect: 'chat', stream, response }]
  t.strictSame((await checkSession(mode.url, running.sessionId, made, core)).wrong, [], what)
  const used = running.core.weights
  t.equal(
    used.at(-1) === String(version),
    pause === 'keep',
    `${what}: the core used ${used[0]}..${used.at(-1)}`,
  )
}

/** Routes with which a trainer pauses the engine or lets it sleep, and those that resume it. */
const RESUMED = {
  '/pause?mode=keep': '/resume',
  '/pause?mode=wait': '/resume',
  '/pause?mode=abort': '/resume',
  '/sleep?level=0&mode=keep': '/wake_up',
}
type Hold = keyof typeof RESUMED

/**
 * Begins a request in each mode, and pauses the engine. On a busy or a fast machine the pause may come after a request
 * has ended: requests of twice the length are then begun. Some length within the context keeps all of them running at
 * the pause.
 * @param isStream whether the request of a mode is streamed
 */
async function beginAndHold(
  vllm: EngineProcess,
  modes: readonly Mode[],
  hold: Hold,
  isStream: (index: number) => boolean,
): Promise<ModeRequest[]> {
  for (let tokens = SHORT; ; tokens = Math.min(2 * tokens, LONGEST)) {
    const requests: ModeRequest[] = []
    for (const [index, mode] of modes.entries()) {
      const stream = isStream(index)
      const running = await begin(vllm.core, mode, { stream, tokens, record: ['weight_versions'] })
      requests.push({ mode, stream, running })
    }
    await vllm.post(hold)
    vllm.core.calls()
    const areInTheirMiddle = requests.every(({ running }) => running.core.ids.length < tokens)
    // "wait" responds when all requests have ended.
    if (areInTheirMiddle || hold === '/pause?mode=wait' || tokens === LONGEST) return requests
    await vllm.post(RESUMED[hold])
    for (const { mode, running } of requests) await getTurn(mode, running)
  }
}

/**
 * Checks that a paused or sleeping engine gets no requests: new ones wait until it resumes, and running ones continue
 * unchanged.
 */
export async function checkHeld(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  // Each turn must begin with the weights that the core has.
  const version = String(Date.now())
  await vllm.post('/update_weight_version', { new_version: version })
  await Promise.all(modes.map((mode) => untilWeights(mode, version)))
  for (const hold of ['/pause?mode=keep', '/sleep?level=0&mode=keep'] as const) {
    const requests = await beginAndHold(vllm, modes, hold, () => true)
    await Promise.all(modes.map((mode) => until(async () => (await getEngine(mode)).unavailable)))
    const before = vllm.core.calls().length
    number += 1
    const sampling = { max_tokens: 3 }
    const waiting = modes.map(({ url }) =>
      new AGENTS.chat!(new Dice(1)).call(`${url}/held-${number}`, { stream: false, sampling }),
    )
    await Promise.all(modes.map(({ url }) => until(async () => (await getJson(`${url}/health`)).queued > 0)))
    t.equal(vllm.core.calls().length, before, `${hold}: nothing is sent to the engine`)
    await vllm.post(RESUMED[hold])
    for (const { finish } of await Promise.all(waiting))
      t.equal(finish, 'length', `${hold}: the request was served when it resumed`)
    for (const { mode, running } of requests) {
      const response = await running.answer
      if (response instanceof Error) throw response
      const made = [{ dialect: 'chat', stream: true, response }]
      const { wrong } = await checkSession(mode.url, running.sessionId, made, vllm.core)
      t.strictSame(wrong, [], `${mode.name}, ${hold}`)
    }
  }
}

/** The engine crashes under load and is restarted. @param restart returns when it serves again */
export async function checkCrash(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  restart: () => Promise<void>,
): Promise<void> {
  const calls: { mode: Mode; stream: boolean; running: Running }[] = []
  for (const mode of modes)
    for (const stream of IS_FULL ? [true, true, false] : [true, false]) {
      const running = await begin(vllm.core, mode, { stream, tokens: FAR })
      calls.push({ mode, stream, running })
    }
  await vllm.kill()
  for (const { mode, stream, running } of calls) {
    // A request whose response has not begun waits for an engine.
    if (!stream) {
      running.leave()
      continue
    }
    t.ok((await running.answer) instanceof Error, `${mode.name}: the agent gets an error`)
    const turn = await getTurn(mode, running)
    t.match(turn, { status: 'failed', error: { code: 'engine_lost' } }, mode.name)
    checkPrefix(t, turn, running, mode.name)
  }
  await restart()
  for (const mode of modes) {
    await until(async () => (await getEngine(mode)).healthy)
    const agent = new AGENTS.chat!(new Dice(2))
    const response = await agent.call(`${mode.url}/restarted`, { stream: true, sampling: { max_tokens: 5 } })
    const made = [{ dialect: 'chat', stream: true, response }]
    t.strictSame(
      (await checkSession(mode.url, 'restarted', made, vllm.core)).wrong,
      [],
      `${mode.name}: served again`,
    )
  }
}
