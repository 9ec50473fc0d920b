/**
 * Many rollouts of a server with agents that fail in every way, and with trainers that disconnect and repeat
 * their requests: each sample has one result, from one attempt, and all counts agree.
 */
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import type { AgentLoopOutput } from '../../src/protocol/schema/agent-loop-output.ts'
import type { SessionRecord, TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import type { AgentLoopOutputs } from '../../src/rollout/agent-loop-output.ts'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import { CommandRunner } from '../../src/rollout/runners/command-runner.ts'
import type { AgentResult, AgentRunner, AgentTask } from '../../src/rollout/runners/runner.ts'
import { toRolloutSettings } from '../../src/rollout/server/request.ts'
import { Rollouts } from '../../src/rollout/server/rollouts.ts'
import { buildRolloutServer } from '../../src/rollout/server/server.ts'
import { createPlainTokenScript } from '../helpers/plain-tokens.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { type Behaviour, Conversation, HANG, type PlanTask } from './rollouts-many-conversation.ts'

const SAMPLES = IS_FULL ? 1_000 : 250
const CONCURRENCY = 64
/** One of this number of callers disconnects as soon as the rollout has started, and repeats its request. */
const DISCONNECTS_EVERY = 7
const RETRIES = 3
/** One of this number of samples has an agent in a separate process. */
const PROCESS_EVERY = 50
const AGENT = fileURLToPath(new URL('./rollouts-many-child.ts', import.meta.url))
/** The only process that hangs, because the test waits for its time limit. */
const HANGING_PROCESS = 0
/** Far more than a process that does not hang needs, also on a busy machine. */
const TIME_LIMIT_MS = 15_000
/** Completions are numbered from here, so that no other token looks like one. */
const FIRST_COMPLETION = 1_000_000

/** Creates a linear congruential generator of numbers from 0 to 1, which are the same in each run. */
function createRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 2 ** 32
    return state / 2 ** 32
  }
}

function drawPlan(random: () => number): Behaviour[] {
  return Array.from({ length: RETRIES + 1 }, () => {
    const draw = random()
    return draw < 0.6 ? 'good' : draw < 0.75 ? 'crash' : draw < 0.85 ? 'hang' : 'zombie'
  })
}

/** Runs in-process agents of every behaviour; some tasks run in separate processes. */
class UnrulyRunner implements AgentRunner {
  /** The completions that the agents of good attempts received, by sample. */
  readonly completionIds = new Map<number, number[]>()
  readonly zombieStatuses: Promise<number>[] = []
  readonly hangingRequests: Promise<unknown>[] = []
  readonly #random = createRandom(7)
  readonly #processes = new CommandRunner({
    command: [process.execPath, AGENT],
    // Some of them leave a process behind on purpose.
    sandbox: { mode: 'none' },
    warn() {},
    timeLimitMs: TIME_LIMIT_MS,
    graceMs: 100,
    verifier: async ({ task, output }) => {
      this.completionIds.set((task.sample as PlanTask).sample, output.trim().split(' ').map(Number))
      return getRewards(task)
    },
  })

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const { sample, plan, isProcess } = task.sample as PlanTask
    if (isProcess) return this.#processes.run(task, signal)
    const { openaiBaseUrl: baseUrl, apiKey, tryNumber } = task
    const conversation = new Conversation({ baseUrl, apiKey, sample, tryNumber })
    const turns = 1 + Math.floor(this.#random() * 4)
    for (let turn = 0; turn < turns; turn += 1) await conversation.sendTurn(this.#drawMode())
    switch (plan[tryNumber - 1]!) {
      case 'good':
        this.completionIds.set(sample, conversation.completionIds)
        return { status: 'completed', rewards: getRewards(task) }
      case 'crash':
        throw new Error('the agent crashed')
      case 'hang':
        this.hangingRequests.push(conversation.sendHangingRequest().catch(() => {}))
        return { status: 'timeout', rewards: {} }
      case 'zombie':
        this.zombieStatuses.push(conversation.sendUntilRejected())
        return { status: 'failed', rewards: {} }
    }
  }

  async close(): Promise<void> {}

  #drawMode() {
    const draw = this.#random()
    return draw < 0.15 ? 'double' : draw < 0.3 ? 'retry' : 'once'
  }
}

function getRewards({ sample }: AgentTask): Record<string, number> {
  return { solved: (sample as PlanTask).sample % 2, style: 0.25 }
}

async function runConcurrently<T, R>(
  items: readonly T[],
  limit: number,
  task: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = []
  let next = 0
  const runNext = async () => {
    for (let i = next++; i < items.length; i = next++) results[i] = await task(items[i]!)
  }
  await Promise.all(Array.from({ length: limit }, runNext))
  return results
}

/** Returns the number of attempts until the task succeeds, or all of them if none does. */
const countAttempts = ({ plan }: PlanTask) => plan.indexOf('good') + 1 || plan.length
const hasGoodAttempt = ({ plan }: PlanTask) => plan.includes('good')

function drawTasks(random: () => number): PlanTask[] {
  return Array.from({ length: SAMPLES }, (_, sample) => {
    const isProcess = sample % PROCESS_EVERY === 0
    const plan = drawPlan(random)
    if (isProcess)
      return {
        sample,
        isProcess,
        plan: sample === HANGING_PROCESS ? ['hang', 'good'] : plan.map(withoutHanging),
      }
    return { sample, isProcess, plan }
  })
}

function withoutHanging(behaviour: Behaviour): Behaviour {
  return behaviour === 'hang' ? 'crash' : behaviour
}

/** Returns what is wrong with the rows of a task. */
function findProblems(task: PlanTask, rows: AgentLoopOutputs, responses: readonly number[] = []): string[] {
  const [{ metrics }] = rows
  const trained = getTrainedCompletions(rows)
  const concerns = ({ prompt_ids: [sample, tryNumber] }: AgentLoopOutput) =>
    sample === task.sample && tryNumber === metrics.tries
  const checks = hasGoodAttempt(task)
    ? {
        'not marked as failed': metrics.failed === 0,
        'each row has the reward': rows.every((row) => row.reward_score === (task.sample % 2) + 0.25),
        'each row is of this sample and of the good attempt': rows.every(concerns),
        'every completion is trained once': String(trained.toSorted()) === String(responses.toSorted()),
      }
    : {
        'one masked row': rows.length === 1 && metrics.failed === 1 && metrics.inert === 1,
        empty: trained.length === 0,
      }
  return Object.entries({ ...checks, tries: metrics.tries === countAttempts(task) })
    .filter(([, isSo]) => !isSo)
    .map(([what]) => what)
}

/** Returns the trained completions. */
function getTrainedCompletions(rows: readonly AgentLoopOutput[]): number[] {
  return rows.flatMap(({ response_ids, response_mask }) =>
    response_ids.filter((id, i) => response_mask[i] === 1 && id >= FIRST_COMPLETION),
  )
}

async function listAllSessions(store: TurnStore): Promise<SessionRecord[]> {
  const { sessions, nextCursor } = await store.listSessions({ limit: 10_000 })
  if (nextCursor != null) throw new Error('there is a second page of sessions')
  return sessions
}

/** Requests a rollout over HTTP as a trainer does. @returns its rows */
async function requestRollout(url: string, task: PlanTask): Promise<AgentLoopOutputs> {
  const body = JSON.stringify({
    sample: task,
    rollout_id: `${task.sample}`,
    sampling_params: { temperature: 1 },
  })
  const post = () =>
    fetch(`${url}/rollouts`, { method: 'POST', body, headers: { 'content-type': 'application/json' } })
  if (task.sample % DISCONNECTS_EVERY === 0) await (await post()).body?.cancel()
  const { status, rows } = (await (await post()).json()) as { status: string; rows: AgentLoopOutputs }
  if (status !== 'done') throw new Error(`rollout ${task.sample} is ${status}`)
  return rows
}

async function startRolloutServer(t: Test, loop: RemoteAgentLoop) {
  const rollouts = new Rollouts({
    run: (request, signal) =>
      loop.rollout(request.sampling_params ?? {}, request.sample, toRolloutSettings(request), signal),
    concurrency: CONCURRENCY,
    graceMs: 60_000,
  })
  const server = buildRolloutServer({ rollouts, keys: [] })
  await server.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(async () => {
    await rollouts.stop(0)
    await server.close()
    await loop.close()
  })
  return { rollouts, url: `http://127.0.0.1:${(server.server.address() as AddressInfo).port}` }
}

t.test(
  `${SAMPLES} rollouts of agents that crash, hang, retry, send twice or outlive an attempt`,
  async (t) => {
    const tasks = drawTasks(createRandom(1))
    const api = await startSessionsApi(t)
    const { store } = api
    let completions = 0
    api.backend.script = createPlainTokenScript((promptIds) =>
      promptIds.at(-1) === HANG ? undefined : [FIRST_COMPLETION + completions++, 9],
    )
    const runner = new UnrulyRunner()
    const options = { proxyUrl: api.url, runner, maxRetries: RETRIES, retryBaseDelayMs: 1 }
    const loop = new RemoteAgentLoop(options, {})
    const { rollouts, url } = await startRolloutServer(t, loop)

    const results = await runConcurrently(tasks, 2 * CONCURRENCY, (task) => requestRollout(url, task))

    const problems = tasks.flatMap((task, i) => {
      const found = findProblems(task, results[i]!, runner.completionIds.get(task.sample))
      return found.length > 0 ? [{ sample: task.sample, found }] : []
    })
    t.strictSame(problems, [], 'each sample has one result, from its good attempt, with all of its tokens')
    t.strictSame(
      new Set(await Promise.all(runner.zombieStatuses)),
      new Set([409]),
      'each zombie was eventually rejected',
    )
    await Promise.all(runner.hangingRequests)

    const succeeded = tasks.filter(hasGoodAttempt).length
    const tries = tasks.reduce((sum, task) => sum + countAttempts(task), 0)
    t.strictSame(
      rollouts.ended,
      { done: SAMPLES, failed: 0, cancelled: 0 },
      'a repeated request starts no second rollout',
    )
    t.equal(rollouts.tries, tries)
    t.ok(succeeded > SAMPLES / 2 && succeeded < SAMPLES, 'some samples fail for good')
    const sessions = await listAllSessions(store)
    const counted = Object.entries(Object.groupBy(sessions, ({ status }) => status))
    t.strictSame(
      Object.fromEntries(counted.map(([status, group]) => [status, group.length])),
      { completed: succeeded, aborted: tries - succeeded },
      'each attempt has a session, and none stays open',
    )
    t.equal(new Set(sessions.map(({ metadata }) => metadata.trial_id)).size, SAMPLES)
    const turns = await Array.fromAsync(sessions, ({ sessionId }) =>
      Array.fromAsync(store.readTurns(sessionId)),
    )
    const statuses = turns.flat().map(({ status }) => status)
    t.equal(
      statuses.filter((status) => status === 'completed').length,
      completions,
      'each completion is a turn',
    )
    t.notOk(statuses.includes('open'))
  },
)
