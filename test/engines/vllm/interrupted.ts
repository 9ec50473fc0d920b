/** Calls that something comes between: agents that leave, engines that pause, sleep, get other weights, or die. */
import type { Test } from 'tap'
import { until } from '../../helpers/until.ts'
import { AGENTS, type Agent, MODEL, type Said } from '../parts/agents.ts'
import type { CoreCall, CoreLog } from '../parts/core-log.ts'
import { Dice } from '../parts/dice.ts'
import type { EngineProcess } from '../parts/engine-process.ts'
import type { Mode } from '../parts/proxies.ts'
import { checkSession, getJson } from '../parts/record.ts'

// biome-ignore lint/suspicious/noExplicitAny: answers of the sessions API are read as their readers do
type Json = any

/** Something else happens once so many tokens were sampled, far from the end. */
const BEGUN = 20
const SHORT = 250
const MIDDLE = 600
const FAR = 1_500
const FREE_MS = 1_000
const STEPS = { max_tokens: 20, ignore_eos: true }
/** Most of a step's time on a CPU would be the sorting of the vocabulary for the `top_p` of the model's own defaults. */
const LONG = { temperature: 1, top_p: 1, ignore_eos: true }

/** A long call of an agent of its own: the core has begun it, and nobody knows yet how it ends. */
interface Running {
  mode: Mode
  stream: boolean
  sessionId: string
  log: CoreLog
  core: CoreCall
  leave(): void
  /** What the agent got, or what it was told instead. */
  answer: Promise<Said | Error>
}

let number = 0

interface Begun {
  dialect?: string
  stream?: boolean
  tokens?: number
  record?: string[]
}

/** A machine that is busy with something else may miss a health check of its engine: then the call is made again. */
const TRIES = 3

async function begin(log: CoreLog, mode: Mode, how: Begun = {}): Promise<Running> {
  for (let tries = 1; ; tries += 1) {
    const running = await tryToBegin(log, mode, how)
    if (!(running instanceof Error)) return running
    if (tries === TRIES) throw running
  }
}

/** @returns an error for a call that ended before the core had begun it */
async function tryToBegin(
  log: CoreLog,
  mode: Mode,
  { dialect = 'chat', stream = true, tokens = SHORT, record = [] }: Begun,
): Promise<Running | Error> {
  number += 1
  // Others begin meanwhile; by its seed the core's call is known from theirs.
  const seed = number
  const sessionId = `interrupted-${mode.name}-${process.pid}-${seed}`
  if (record.length > 0) {
    const body = JSON.stringify({ session_id: sessionId, record })
    // A connection of its own: one that was idle may be closed at the other end just now.
    const headers = { 'content-type': 'application/json', connection: 'close' }
    await fetch(`${mode.url}/sessions`, { method: 'POST', headers, body })
  }
  const agent: Agent = new AGENTS[dialect]!(new Dice(seed))
  const control = new AbortController()
  const sampling = { ...LONG, seed, max_tokens: tokens, min_tokens: tokens }
  const asked = { stream, sampling, signal: control.signal }
  let early: Error | undefined
  let isOver = false
  const answer = agent.call(`${mode.url}/${sessionId}`, asked).catch((error: Error) => {
    early = error
    return error
  })
  void answer.then(() => {
    isOver = true
  })
  const begun = () => log.calls().findLast(({ params, ids }) => params.seed === seed && ids.length >= BEGUN)
  await until(() => begun() ?? isOver)
  const core = begun()
  if (core === undefined) return early ?? new Error(`${sessionId}: answered before the core had begun`)
  // The core is ahead of what has come from it: by seconds, on a busy machine.
  if (stream) await until(async () => isOver || (await sampledSoFar(mode, sessionId)) > 0)
  return { mode, stream, sessionId, log, core, leave: () => control.abort(), answer }
}

/** Tokens of the session's open call that have reached the proxy. */
async function sampledSoFar({ url }: Mode, sessionId: string): Promise<number> {
  const { turns } = await getJson(`${url}/admin/turns`)
  const turn = turns.find((open: Json) => open.session_id === sessionId)
  return turn?.sampled_tokens ?? 0
}

/** The engine, or the worker before it, as the proxy sees it. */
async function engineOf({ url }: Mode): Promise<Json> {
  const { engines, workers } = await getJson(`${url}/health`)
  return (engines ?? workers)[0]
}

/** The only turn of its session, once it has ended. */
async function turnOf({ mode, sessionId }: Running): Promise<Json> {
  return until(async () => {
    const { turns } = await getJson(`${mode.url}/sessions/${sessionId}`)
    return turns[0]?.status !== 'open' && turns[0]
  })
}

/** What a turn has on record is what its call sampled, from the first token on. */
function checkPrefix(t: Test, turn: Json, { core, log }: Running, what: string): void {
  log.calls()
  const { completion_token_ids: ids, completion_logprobs: logprobs } = turn
  t.strictSame(turn.prompt_token_ids, core.prompt, `${what}: the prompt`)
  t.ok(
    ids.length >= 1 && ids.join() === core.ids.slice(0, ids.length).join(),
    `${what}: ${ids.length} ids as sampled`,
  )
  const isNear = logprobs.every((value: number, at: number) => Math.abs(value - core.logprobs[at]!) < 1e-6)
  t.ok(logprobs.length === ids.length && isNear, `${what}: logprobs as sampled`)
}

/** An agent that leaves frees the engine long before its answer would have ended, whatever its dialect. */
export async function checkLeaving(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  const calls = (await Promise.all(modes.map((mode) => leaving(mode, vllm.core)))).flat()
  for (const { what, running } of calls) {
    const turn = await turnOf(running)
    t.equal(turn.status, 'aborted', what)
    if (running.stream) checkPrefix(t, turn, running, what)
  }
  // Each step of the engine samples a token of every call that it has.
  const step = () => vllm.post('/v1/completions', { model: MODEL, prompt: 'the', ...STEPS })
  await step()
  vllm.core.calls()
  const sampled = calls.map(({ running }) => running.core.ids.length)
  await step()
  vllm.core.calls()
  for (const [at, { what, running }] of calls.entries())
    t.equal(running.core.ids.length, sampled[at], `${what}: the engine has stopped`)
  for (const { name } of modes) {
    const own = calls.filter(({ running }) => running.mode.name === name)
    const tookMs = own.map(({ running, leftMs }) => Math.round(running.core.lastAtMs - leftMs))
    tookMs.sort((a, b) => a - b)
    t.comment(`${name}: the engine was free after ${tookMs.join(', ')} ms`)
    // How long the others took is a matter of what else the machine does.
    t.ok(tookMs[0]! < FREE_MS, `${name}: within a second`)
  }
}

/** Agents of each dialect, one after the other, which leave as soon as their call has begun. */
async function leaving(mode: Mode, log: CoreLog) {
  const calls: { what: string; running: Running; leftMs: number }[] = []
  for (const dialect of Object.keys(AGENTS))
    for (const stream of [true, false]) {
      const running = await begin(log, mode, { dialect, stream, tokens: FAR })
      running.leave()
      const what = `${mode.name}, ${dialect}, ${stream ? 'streamed' : 'whole'}`
      calls.push({ what, running, leftMs: Date.now() })
    }
  return calls
}

/** Weights are replaced while calls run, with each way to pause; dev mode. */
export async function checkWeights(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  models: readonly string[],
): Promise<void> {
  let version = Date.now()
  await vllm.post('/update_weight_version', { new_version: String(version) })
  for (const pause of ['keep', 'wait', 'abort']) {
    // A whole answer tells nothing of weights: its call began with those of the last health check.
    for (const mode of modes)
      await until(async () => (await engineOf(mode)).weight_version === String(version))
    const calls = await beginAndPause(vllm, modes, pause)
    version += 1
    // An answer that is over but not read yet has the weights of when it is read.
    if (pause === 'wait') await Promise.all(calls.map(turnOf))
    const weights_path = models[version % models.length]
    await vllm.post('/collective_rpc', { method: 'reload_weights', kwargs: { weights_path } })
    await vllm.post('/update_weight_version', { new_version: String(version) })
    await vllm.post('/resume')
    for (const running of calls) {
      const what = `${running.mode.name}, pause ${pause}, ${running.stream ? 'streamed' : 'whole'}`
      if (pause === 'abort') await checkAborted(t, running, what)
      else await checkVersioned(t, running, what, { version, isNew: pause === 'keep' })
    }
  }
}

async function checkAborted(t: Test, running: Running, what: string): Promise<void> {
  t.ok((await running.answer) instanceof Error, `${what}: the agent hears of it`)
  const turn = await turnOf(running)
  t.equal(turn.status, 'failed', what)
  if (running.stream) checkPrefix(t, turn, running, what)
}

async function checkVersioned(
  t: Test,
  running: Running,
  what: string,
  { version, isNew }: { version: number; isNew: boolean },
): Promise<void> {
  await checkFinished(t, running, what)
  const used = running.core.weights
  t.equal(used.at(-1) === String(version), isNew, `${what}: the core used ${used[0]}..${used.at(-1)}`)
}

/** It was what it would have been if nothing had come between. */
async function checkFinished(t: Test, running: Running, what: string): Promise<void> {
  const { mode, stream, sessionId, log } = running
  const said = await running.answer
  if (said instanceof Error) throw said
  const made = [{ dialect: 'chat', stream, said }]
  t.strictSame((await checkSession(mode.url, sessionId, made, log)).wrong, [], what)
}

/** A machine that is busy with something else may be so late to pause that a call has ended: then others are begun. */
async function beginAndPause(vllm: EngineProcess, modes: readonly Mode[], pause: string): Promise<Running[]> {
  // Long enough to be in its middle when the weights come, also on a fast machine; "wait" waits for its end.
  const tokens = pause === 'wait' ? SHORT : MIDDLE
  const each = modes.flatMap((mode) => [true, false].map((stream) => ({ mode, stream })))
  for (let tries = 1; ; tries += 1) {
    const calls = await Promise.all(
      each.map(({ mode, stream }) => begin(vllm.core, mode, { stream, tokens, record: ['weight_versions'] })),
    )
    // "wait" answers when all calls have ended.
    await vllm.post(`/pause?mode=${pause}`)
    vllm.core.calls()
    const areInTheirMiddle = calls.every(({ core }) => core.ids.length < tokens)
    if (areInTheirMiddle || pause === 'wait' || tries === TRIES) return calls
    await vllm.post('/resume')
    await Promise.all(calls.map(turnOf))
  }
}

/** By whom a trainer holds it, and lets it go on. */
const HELD = [
  ['/pause?mode=keep', '/resume'],
  ['/sleep?level=0&mode=keep', '/wake_up'],
] as const

/** A paused or sleeping engine gets no calls; they wait until it goes on, and those that it had are what they would have been. */
export async function checkHeld(t: Test, modes: readonly Mode[], vllm: EngineProcess): Promise<void> {
  // Each turn is to begin with the weights that the core has by now.
  const version = String(Date.now())
  await vllm.post('/update_weight_version', { new_version: version })
  for (const mode of modes) await until(async () => (await engineOf(mode)).weight_version === version)
  for (const [hold, goOn] of HELD) {
    const calls = await Promise.all(modes.map((mode) => begin(vllm.core, mode)))
    await vllm.post(hold)
    for (const mode of modes) await until(async () => (await engineOf(mode)).unavailable)
    const before = vllm.core.calls().length
    number += 1
    const waiting = modes.map((mode) =>
      new AGENTS.chat!(new Dice(1)).call(`${mode.url}/held-${number}`, {
        stream: false,
        sampling: { max_tokens: 3 },
      }),
    )
    for (const mode of modes) await until(async () => (await getJson(`${mode.url}/health`)).queued > 0)
    t.equal(vllm.core.calls().length, before, `${hold}: nothing is sent to it`)
    await vllm.post(goOn)
    for (const [at, running] of calls.entries()) {
      const what = `${running.mode.name}, ${hold}`
      t.equal((await waiting[at]!).finish, 'length', `${what}: the call was served when it went on`)
      await checkFinished(t, running, what)
    }
  }
}

/** The engine dies under load, and comes back. @param restart returns when it serves again */
export async function checkCrash(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  restart: () => Promise<void>,
): Promise<void> {
  const calls = await Promise.all(
    modes.flatMap((mode) =>
      [true, true, false].map((stream) => begin(vllm.core, mode, { stream, tokens: FAR })),
    ),
  )
  await vllm.kill()
  for (const running of calls) {
    const { name } = running.mode
    // One that nothing of has reached its agent waits for an engine.
    if (!running.stream) {
      running.leave()
      continue
    }
    t.ok((await running.answer) instanceof Error, `${name}: the agent hears of it`)
    const turn = await turnOf(running)
    t.match(turn, { status: 'failed', error: { code: 'engine_lost' } }, name)
    checkPrefix(t, turn, running, name)
  }
  await restart()
  for (const mode of modes) {
    await until(async () => (await engineOf(mode)).healthy)
    const agent = new AGENTS.chat!(new Dice(2))
    const said = await agent.call(`${mode.url}/restarted`, { stream: true, sampling: { max_tokens: 5 } })
    const made = [{ dialect: 'chat', stream: true, said }]
    t.strictSame(
      (await checkSession(mode.url, 'restarted', made, vllm.core)).wrong,
      [],
      `${mode.name}: served again`,
    )
  }
}
