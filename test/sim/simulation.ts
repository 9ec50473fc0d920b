/** One run: creates a world from a seed, runs it until every operation has ended, and checks the final state. */
import { EventEmitter } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { exitOnUnexpectedErrors } from '../../src/cli/process-lifecycle.ts'
import { createSeededRandom } from '../../src/embedded/engine/random.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { runAgent } from './actors/agent.ts'
import { resetClients } from './actors/client.ts'
import { DIALECTS, type Dialect } from './actors/dialects.ts'
import { type Model, SimEngine } from './actors/engine.ts'
import { History, type OperationKind } from './actors/history.ts'
import { watchHealth } from './actors/monitor.ts'
import { hash, StartedResponses, WORD_VOCABULARY } from './actors/oracle.ts'
import { SimProxy } from './actors/proxy.ts'
import { abortForWeights, resume, runTrainer, updateWeights } from './actors/trainer.ts'
import { SimWorker } from './actors/worker.ts'
import { Chaos } from './chaos.ts'
import type { RunFacts } from './check/recorded-session.ts'
import { checkRun } from './check/run.ts'
import { drawCuts, drawFaults, FAULTS_UNTIL_MS, type Fault } from './faults.ts'
import { createLogger } from './world/ports.ts'
import { getSimModel, type SimModel } from './world/token-model.ts'
import { sleep, World } from './world/world.ts'

export interface RunOptions {
  seed: number
  /** The number of tasks after which the run stops. Default: far more than any run needs. */
  steps?: number
  /** Indices of the faults to inject, among those of the seed. Default: all. */
  faults?: readonly number[]
  /** Receives each log line. */
  echo?: (line: string) => void
}

export interface RunResult {
  seed: number
  violations: readonly string[]
  /** A digest of the log: equal for equal seeds. */
  digest: string
  faults: readonly Fault[]
  tasks: number
  attempts: number
  responses: number
}

/** A wait that exceeds this after the last fault counts as a hang. */
const HANG_MS = 900_000
const MAX_STEPS = 3_000_000

const OPERATIONS: readonly OperationKind[] = ['reward', 'reset', 'delete', 'complete', 'abort', 'read']

export async function simulate({
  seed,
  steps = MAX_STEPS,
  faults: chosen,
  echo,
}: RunOptions): Promise<RunResult> {
  const tokens = await getSimModel()
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-sim-'))
  const world = new World(seed, echo)
  const restoreTime = world.time.install(seed)
  const stopWatching = watchErrors(world)
  resetClients()
  try {
    return await run(world, { steps, path: join(folder, 'sim.db'), chosen, tokens })
  } finally {
    stopWatching()
    restoreTime()
    rmSync(folder, { recursive: true, force: true })
  }
}

interface RunSetup {
  steps: number
  path: string
  chosen: readonly number[] | undefined
  tokens: SimModel
}

async function run(world: World, { steps, path, chosen, tokens }: RunSetup): Promise<RunResult> {
  const { workload } = world.random
  const drawn = drawFaults(world.random.faults)
  const mode = workload() < 0.65 ? 'relay' : 'local'
  const isTokenMode = workload() < 0.4
  const continuation = drawContinuation(world, isTokenMode)
  const all = continuation.hasOnlyCuts ? continuation.cuts : [...drawn, ...continuation.cuts]
  const faults = chosen === undefined ? all : all.filter((_fault, index) => chosen.includes(index))
  const model: Model = isTokenMode
    ? { ...tokens, startedResponses: new StartedResponses() }
    : { vocabulary: WORD_VOCABULARY, decode: String }
  const engines = Array.from(
    { length: 1 + Math.floor(workload() * 3) },
    (_, index) => new SimEngine(world, `engine${index}`, model, { reportsPause: continuation.aborts }),
  )
  const engineUrls = engines.map(({ address: { host, port } }) => `http://${host}:${port}`)
  const overrides: Partial<ServeConfig> = {
    mode,
    ...(isTokenMode && { tokenizer: 'embedded', continueResponses: continuation.isDefault }),
    db: path,
    durability: 'process',
    relayTimeoutMs: 60_000,
    workerGraceMs: workload() < 0.2 ? 2_000 : 20_000,
    ...(mode === 'local' && {
      engineUrls,
      engineKind: 'vllm' as const,
      maxConcurrency: 1 + Math.floor(workload() * 6),
    }),
  }
  const proxy = new SimProxy(world, overrides, tokens.open)
  proxy.start()
  const workers =
    mode === 'local'
      ? []
      : Array.from({ length: 1 + Math.floor(workload() * 3) }, (_, index) => {
          const maxConcurrency = 1 + Math.floor(workload() * 4)
          const workerEngineUrls = workload() < 0.5 ? engineUrls : [engineUrls[index % engineUrls.length]!]
          return new SimWorker(world, `worker${index}`, {
            engineUrls: workerEngineUrls,
            engineKind: 'vllm',
            maxConcurrency,
          })
        })
  const history = new History()
  const chaos = new Chaos({ world, proxy, workers, engines })
  for (const fault of faults) world.time.after(fault.atMs, () => chaos.inject(fault), null)
  const isUndisturbed = faults.length === 0
  const jobs = [
    ...startSessions(world, history, continuation),
    ...startUpdates(world, engines, { isUndisturbed, aborts: continuation.aborts }),
  ]
  const health = watchHealth(world, proxy, history)
  let isDone = false
  void Promise.all(jobs).then(() => {
    isDone = true
  })
  const isTooLong = () => world.time.tasks > steps
  await world.time.run(FAULTS_UNTIL_MS, isTooLong)
  chaos.heal()
  world.log('world', 'is healed')
  await world.time.run(FAULTS_UNTIL_MS + HANG_MS, () => isDone || isTooLong())
  if (!isDone) world.reportViolation(isTooLong() ? 'the run takes too many steps' : 'an operation hangs')
  const continues = continuation.isDefault
  await finish(world, {
    health,
    proxy,
    workers,
    engines,
    history,
    path,
    faults,
    model,
    isTokenMode,
    continues,
  })
  const { attempts } = history
  return {
    seed: world.seed,
    violations: world.violations,
    digest: world.digest(),
    faults,
    tasks: world.time.tasks,
    attempts: attempts.length,
    responses: attempts.filter(({ outcome }) => outcome === 'read').length,
  }
}

interface FinishedRun extends RunFacts {
  health: { stop(): void }
  proxy: SimProxy
  workers: readonly SimWorker[]
}

/** Checks the final state, and stops workers and the proxy in order. */
async function finish(world: World, finishedRun: FinishedRun): Promise<void> {
  const { health, proxy, workers, engines } = finishedRun
  let isOver = false
  const end = async () => {
    await resume(world)
    await sleep(65_000)
    health.stop()
    if (world.violations.length === 0) await checkRun(world, finishedRun)
    proxy.isOver = true
    await Promise.all(workers.map((worker) => worker.stop(5_000)))
    await proxy.stop(5_000)
    if (engines.some(({ running }) => running > 0))
      world.reportViolation('an engine still samples without a client')
  }
  void end().then(
    () => {
      isOver = true
    },
    (error: unknown) => {
      world.reportViolation(`the checker failed: ${error instanceof Error ? error.stack : error}`)
      isOver = true
    },
  )
  await world.time.run(world.time.nowMs + HANG_MS, () => isOver)
  if (!isOver) world.reportViolation('the run does not end')
  proxy.isOver = true
  for (const { machine } of [proxy, ...workers]) machine.kill()
  for (const engine of engines) engine.kill()
}

/** How a run cuts and continues responses. */
interface Continuation {
  /** Whether responses continue in sessions that do not override it. */
  isDefault: boolean
  cuts: readonly Fault[]
  /** Whether there are no other faults, so that no response may fail. */
  hasOnlyCuts: boolean
  /** Whether trainers abort responses to update weights. */
  aborts: boolean
}

/** Draws from a separate stream, so that runs without continuation do not change. */
function drawContinuation(world: World, isTokenMode: boolean): Continuation {
  const { cuts: random } = world.random
  const drawn = random()
  // The bounds preserve the runs of the seeds that find some planted faults.
  const continues = isTokenMode && drawn > 0.32 && drawn < 0.88
  if (!continues) return { isDefault: false, cuts: [], hasOnlyCuts: false, aborts: false }
  const isDefault = random() < 0.8
  return { isDefault, cuts: drawCuts(random), hasOnlyCuts: random() < 0.5, aborts: random() < 0.6 }
}

function startSessions(world: World, history: History, { isDefault, cuts }: Continuation): Promise<void>[] {
  const { workload } = world.random
  const count = 1 + Math.floor(workload() * 4)
  return Array.from({ length: count }, (_, number) => {
    const sessionId = `s${number}`
    const agents = Array.from({ length: workload() < 0.7 ? 1 : 2 }, (_, agentIndex) => {
      const dialect = drawDialect(workload)
      return runAgent(world, history, {
        sessionId,
        name: `agent${agentIndex}`,
        dialect,
        tools: dialect !== 'completions' && workload() < 0.5,
        turns: 1 + Math.floor(workload() * 6),
        startMs: 100 + 8_000 * workload() ** 2,
        random: createSeededRandom(hash(`${world.seed} ${sessionId} ${agentIndex}`)),
      })
    })
    const operations = Array.from({ length: workload() < 0.5 ? 0 : 1 + Math.floor(workload() * 2) }, () => ({
      atMs: 500 + 15_000 * workload(),
      kind: OPERATIONS[Math.floor(workload() * OPERATIONS.length)]!,
    }))
    const plan = {
      sessionId,
      creates: workload() < 0.5,
      continueResponses: isDefault || cuts.length > 0 ? drawOverride(world.random.cuts) : undefined,
      operations,
      completes: workload() < 0.6,
      random: createSeededRandom(hash(`${world.seed} ${sessionId}`)),
    }
    return runTrainer(world, history, plan, Promise.all(agents))
  })
}

/** Draws a dialect. Half of the agents use Chat Completions, as in practice. */
function drawDialect(random: () => number): Dialect {
  return random() < 0.5 ? 'chat' : DIALECTS[Math.floor(random() * DIALECTS.length)]!
}

function drawOverride(random: () => number): boolean | undefined {
  const drawn = random()
  return drawn < 0.6 ? undefined : drawn < 0.9
}

function startUpdates(
  world: World,
  engines: readonly SimEngine[],
  { isUndisturbed, aborts }: { isUndisturbed: boolean; aborts: boolean },
): Promise<void>[] {
  const { workload } = world.random
  const count = Math.floor(workload() * 3)
  const times = Array.from({ length: count }, () => 2_000 + 20_000 * workload()).sort((a, b) => a - b)
  const update = async () => {
    let version = 1
    for (const atMs of times) {
      await sleep(Math.max(0, atMs - world.time.nowMs))
      version += 1
      if (aborts) await abortForWeights(world, engines, String(version))
      else await updateWeights(world, engines, { version: String(version), isUndisturbed })
    }
  }
  return [update()]
}

/** Reports unhandled errors, which would end a process. */
function watchErrors(world: World): () => void {
  const port = Object.assign(new EventEmitter(), {
    exit: () => world.reportViolation('an unhandled error would have ended a process'),
  })
  exitOnUnexpectedErrors(createLogger(world, 'process'), port)
  const onError = (error: unknown) => {
    world.log(
      'process',
      `unexpected: ${error instanceof Error ? error.stack?.split('\n').slice(0, 3).join(' ') : error}`,
    )
    port.emit('uncaughtException', error)
  }
  process.on('uncaughtException', onError)
  process.on('unhandledRejection', onError)
  return () => {
    process.off('uncaughtException', onError)
    process.off('unhandledRejection', onError)
  }
}
