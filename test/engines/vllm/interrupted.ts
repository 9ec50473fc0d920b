/** Calls that something comes between: agents that leave, engines that pause, sleep, get other weights, or die. */
import type { Test } from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
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
/** What the context holds beside a prompt. */
const LONGEST = 3_500
const STEPS = { max_tokens: 20, ignore_eos: true }

/** A long call of an agent of its own: the core has begun it, and nobody knows yet how it ends. */
interface Running {
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
  const sessionId = `interrupted-${mode.name}-${process.pid}-${number}`
  if (record.length > 0) {
    const body = JSON.stringify({ session_id: sessionId, record })
    // A connection of its own: one that was idle may be closed at the other end just now.
    const headers = { 'content-type': 'application/json', connection: 'close' }
    await fetch(`${mode.url}/sessions`, { method: 'POST', headers, body })
  }
  const before = log.calls().length
  const agent: Agent = new AGENTS[dialect]!(new Dice(number))
  const control = new AbortController()
  const sampling = { temperature: 1, max_tokens: tokens, min_tokens: tokens, ignore_eos: true }
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
  const begun = () =>
    log
      .calls()
      .slice(before)
      .find(({ ids }) => ids.length >= BEGUN)
  await until(() => begun() ?? isOver)
  const core = begun()
  if (core === undefined) return early ?? new Error(`${sessionId}: answered before the core had begun`)
  // The core is ahead of what has come from it: by seconds, on a busy machine.
  if (stream) await until(async () => isOver || (await sampledSoFar(mode, sessionId)) > 0)
  return { sessionId, log, core, leave: () => control.abort(), answer }
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
async function turnOf(mode: Mode, { sessionId }: Running): Promise<Json> {
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
      const turn = await turnOf(mode, running)
      t.equal(turn.status, 'aborted', what)
      if (stream) checkPrefix(t, turn, running, what)
    }
    // A step of the engine samples a token of every request that it has. One that was aborted gets none.
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
    // How long is a matter of what else the machine does.
    t.comment(`${mode.name}: the engine was free after ${tookMs.sort((a, b) => a - b).join(', ')} ms`)
  }
}

/** Weights are replaced while a call runs, with each way to pause; dev mode. */
export async function checkWeights(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  models: readonly string[],
): Promise<void> {
  let version = Date.now()
  await vllm.post('/update_weight_version', { new_version: String(version) })
  for (const [modeAt, mode] of modes.entries())
    for (const [pauseAt, pause] of ['keep', 'wait', 'abort'].entries())
      for (const stream of IS_FULL ? [true, false] : [(modeAt + pauseAt) % 2 === 0]) {
        const what = `${mode.name}, pause ${pause}, ${stream ? 'streamed' : 'whole'}`
        // A whole answer tells nothing of weights: its call began with those of the last health check.
        await until(async () => (await engineOf(mode)).weight_version === String(version))
        // Long enough to be in its middle when the weights come, also on a fast machine; "wait" waits for its end.
        const tokens = pause === 'wait' ? SHORT : MIDDLE
        const running = await beginAndPause(vllm, mode, pause, {
          stream,
          tokens,
          record: ['weight_versions'],
        })
        version += 1
        // An answer that is over but not read yet has the weights of when it is read.
        if (pause === 'wait') await turnOf(mode, running)
        await vllm.post('/collective_rpc', {
          method: 'reload_weights',
          kwargs: { weights_path: models[version % models.length] },
        })
        await vllm.post('/update_weight_version', { new_version: String(version) })
        // What the end of a whole answer is stamped with is as old as the last health check.
        await until(async () => (await engineOf(mode)).weight_version === String(version))
        await vllm.post('/resume')
        const said = await running.answer
        const turn = await turnOf(mode, running)
        if (pause === 'abort') {
          t.ok(said instanceof Error, `${what}: the agent hears of it`)
          t.equal(turn.status, 'failed', what)
          if (stream) checkPrefix(t, turn, running, what)
          continue
        }
        if (said instanceof Error) throw said
        const made = [{ dialect: 'chat', stream, said }]
        t.strictSame((await checkSession(mode.url, running.sessionId, made, vllm.core)).wrong, [], what)
        const used = running.core.weights
        t.equal(
          used.at(-1) === String(version),
          pause === 'keep',
          `${what}: the core used ${used[0]}..${used.at(-1)}`,
        )
      }
}

/**
 * A busy machine may pause so late that the request has ended: then a request of twice the length is begun. Within the context
 * there is a length at which it is in its middle.
 */
async function beginAndPause(
  vllm: EngineProcess,
  mode: Mode,
  pause: string,
  how: Begun & { tokens: number },
): Promise<Running> {
  for (let { tokens } = how; ; tokens = Math.min(2 * tokens, LONGEST)) {
    const running = await begin(vllm.core, mode, { ...how, tokens })
    // "wait" answers when all requests have ended.
    await vllm.post(`/pause?mode=${pause}`)
    vllm.core.calls()
    const isInItsMiddle = running.core.ids.length < tokens
    if (isInItsMiddle || pause === 'wait' || tokens === LONGEST) return running
    await vllm.post('/resume')
    await turnOf(mode, running)
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
  for (const [at, mode] of modes.entries())
    for (const [hold, goOn] of IS_FULL ? HELD : [HELD[at % HELD.length]!]) {
      const what = `${mode.name}, ${hold}`
      const running = await begin(vllm.core, mode)
      await vllm.post(hold)
      await until(async () => (await engineOf(mode)).unavailable)
      const before = vllm.core.calls().length
      number += 1
      const waiting = new AGENTS.chat!(new Dice(1)).call(`${mode.url}/held-${number}`, {
        stream: false,
        sampling: { max_tokens: 3 },
      })
      await until(async () => (await getJson(`${mode.url}/health`)).queued > 0)
      t.equal(vllm.core.calls().length, before, `${what}: nothing is sent to it`)
      await vllm.post(goOn)
      t.equal((await waiting).finish, 'length', `${what}: the call was served when it went on`)
      const said = await running.answer
      if (said instanceof Error) throw said
      const made = [{ dialect: 'chat', stream: true, said }]
      t.strictSame((await checkSession(mode.url, running.sessionId, made, vllm.core)).wrong, [], what)
    }
}

/** The engine dies under load, and comes back. @param restart returns when it serves again */
export async function checkCrash(
  t: Test,
  modes: readonly Mode[],
  vllm: EngineProcess,
  restart: () => Promise<void>,
): Promise<void> {
  const calls: { mode: Mode; stream: boolean; running: Running }[] = []
  for (const mode of modes)
    for (const stream of [true, true, false]) {
      const running = await begin(vllm.core, mode, { stream, tokens: FAR })
      calls.push({ mode, stream, running })
    }
  await vllm.kill()
  for (const { mode, stream, running } of calls) {
    // One that nothing of has reached its agent waits for an engine.
    if (!stream) {
      running.leave()
      continue
    }
    t.ok((await running.answer) instanceof Error, `${mode.name}: the agent hears of it`)
    const turn = await turnOf(mode, running)
    t.match(turn, { status: 'failed', error: { code: 'engine_lost' } }, mode.name)
    checkPrefix(t, turn, running, mode.name)
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
