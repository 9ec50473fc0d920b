/** One run: a world is created from a seed and runs until every operation has ended; its final state is checked. */
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
import { BegunResponses, hash, WORD_VOCABULARY } from './actors/oracle.ts'
import { SimProxy } from './actors/proxy.ts'
import { abortForWeights, resume, runTrainer, updateWeights } from './actors/trainer.ts'
import { SimWorker } from './actors/worker.ts'
import { Chaos } from './chaos.ts'
import { checkRecord } from './check/record.ts'
import { drawCuts, drawFaults, FAULTS_UNTIL_MS, type Fault, faultText } from './faults.ts'
import { loggerOf } from './world/ports.ts'
import { type SimModel, simModel } from './world/token-model.ts'
import { pause, World } from './world/world.ts'

export interface RunOptions {
  seed: number
  /** The number of tasks after which a run is stopped. Default: far more than any run needs. */
  steps?: number
  /** Indices of the seed's faults that are injected. Default: all. */
  faults?: readonly number[]
  /** Called for each log line. */
  echo?: (line: string) => void
}

export interface RunResult {
  seed: number
  violations: readonly string[]
  /** A digest of the log: equal for equal seeds. */
  digest: string
  faults: readonly Fault[]
  tasks: number
  calls: number
  answered: number
}

/** A wait that exceeds this after the last fault counts as a hang. */
const PATIENCE_MS = 900_000
const STEPS = 3_000_000

const MOVES: readonly OperationKind[] = ['reward', 'reset', 'delete', 'complete', 'abort', 'read']

export async function simulate({
  seed,
  steps = STEPS,
  faults: chosen,
  echo,
}: RunOptions): Promise<RunResult> {
  const tokens = await simModel()
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-sim-'))
  const world = new World(seed, echo)
  const giveBack = world.time.install(seed)
  const stopWatching = watchErrors(world)
  resetClients()
  try {
    return await run(world, { steps, path: join(folder, 'sim.db'), chosen, tokens })
  } finally {
    stopWatching()
    giveBack()
    rmSync(folder, { recursive: true, force: true })
  }
}

interface Shape {
  steps: number
  path: string
  chosen: readonly number[] | undefined
  tokens: SimModel
}

async function run(world: World, { steps, path, chosen, tokens }: Shape): Promise<RunResult> {
  const { workload } = world.random
  const drawn = drawFaults(world.random.faults)
  const mode = workload() < 0.65 ? 'relay' : 'local'
  const isTokenMode = workload() < 0.4
  const continuation = drawContinuation(world, isTokenMode)
  const all = continuation.hasOnlyCuts ? continuation.cuts : [...drawn, ...continuation.cuts]
  const faults = chosen === undefined ? all : all.filter((_fault, place) => chosen.includes(place))
  const model: Model = isTokenMode
    ? { ...tokens, begun: new BegunResponses() }
    : { vocabulary: WORD_VOCABULARY, decode: String }
  const engines = Array.from(
    { length: 1 + Math.floor(workload() * 3) },
    (_, at) => new SimEngine(world, `engine${at}`, model, { reportsPause: continuation.aborts }),
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
      : Array.from({ length: 1 + Math.floor(workload() * 3) }, (_, at) => {
          const maxConcurrency = 1 + Math.floor(workload() * 4)
          const own = workload() < 0.5 ? engineUrls : [engineUrls[at % engineUrls.length]!]
          return new SimWorker(world, `worker${at}`, { engineUrls: own, engineKind: 'vllm', maxConcurrency })
        })
  const history = new History()
  const chaos = new Chaos({ world, proxy, workers, engines })
  for (const fault of faults) world.time.after(fault.atMs, () => chaos.strike(fault), null)
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
  world.log('world', 'is whole again')
  await world.time.run(FAULTS_UNTIL_MS + PATIENCE_MS, () => isDone || isTooLong())
  if (!isDone) world.violated(isTooLong() ? 'the run takes too many steps' : 'an operation waits forever')
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
    calls: attempts.length,
    answered: attempts.filter(({ outcome }) => outcome === 'read').length,
  }
}

interface Ending {
  health: { stop(): void }
  proxy: SimProxy
  workers: readonly SimWorker[]
  engines: readonly SimEngine[]
  history: History
  path: string
  faults: readonly Fault[]
  model: Model
  isTokenMode: boolean
  /** Whether responses continue in sessions that do not override it. */
  continues: boolean
}

/** Checks what is left, and ends everything in order. */
async function finish(world: World, ending: Ending): Promise<void> {
  const { health, proxy, workers, engines } = ending
  let isOver = false
  const end = async () => {
    await resume(world)
    await pause(65_000)
    health.stop()
    if (world.violations.length === 0) await checkRecord(world, ending)
    proxy.isOver = true
    await Promise.all(workers.map((worker) => worker.stop(5_000)))
    await proxy.stop(5_000)
    if (engines.some(({ running }) => running > 0)) world.violated('an engine still samples without a client')
  }
  void end().then(
    () => {
      isOver = true
    },
    (error: unknown) => {
      world.violated(`the checker failed: ${error instanceof Error ? error.stack : error}`)
      isOver = true
    },
  )
  await world.time.run(world.time.nowMs + PATIENCE_MS, () => isOver)
  if (!isOver) world.violated('the world does not come to an end')
  proxy.isOver = true
  for (const { machine } of [proxy, ...workers]) machine.kill()
  for (const engine of engines) engine.kill()
}

/** Whether and how responses of a run are cut and continue. */
interface Continuation {
  /** Whether responses continue in sessions that do not override it. */
  isDefault: boolean
  cuts: readonly Fault[]
  /** Whether there are no other faults, so that no response may be lost. */
  hasOnlyCuts: boolean
  /** Whether weights are updated by aborts. */
  aborts: boolean
}

/** Draws from a stream of its own, so that runs without continuation stay as they are. */
function drawContinuation(world: World, isTokenMode: boolean): Continuation {
  const { cuts: random } = world.random
  const drawn = random()
  // The bounds keep the runs of the seeds by which some planted faults are found.
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
    const agents = Array.from({ length: workload() < 0.7 ? 1 : 2 }, (_, at) => {
      const dialect = drawDialect(workload)
      return runAgent(world, history, {
        sessionId,
        name: `agent${at}`,
        dialect,
        tools: dialect !== 'completions' && workload() < 0.5,
        turns: 1 + Math.floor(workload() * 6),
        startMs: 100 + 8_000 * workload() ** 2,
        random: createSeededRandom(hash(`${world.seed} ${sessionId} ${at}`)),
      })
    })
    const moves = Array.from({ length: workload() < 0.5 ? 0 : 1 + Math.floor(workload() * 2) }, () => ({
      atMs: 500 + 15_000 * workload(),
      kind: MOVES[Math.floor(workload() * MOVES.length)]!,
    }))
    const plan = {
      sessionId,
      creates: workload() < 0.5,
      continueResponses: isDefault || cuts.length > 0 ? drawOverride(world.random.cuts) : undefined,
      moves,
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
      await pause(Math.max(0, atMs - world.time.nowMs))
      version += 1
      if (aborts) await abortForWeights(world, engines, String(version))
      else await updateWeights(world, engines, { version: String(version), isUndisturbed })
    }
  }
  return [update()]
}

/** Reports unhandled errors, which would end the process. */
function watchErrors(world: World): () => void {
  const port = Object.assign(new EventEmitter(), {
    exit: () => world.violated('an unhandled error would have ended a process'),
  })
  exitOnUnexpectedErrors(loggerOf(world, 'process'), port)
  const onError = (error: unknown) => {
    world.log(
      'process',
      `unforeseen: ${error instanceof Error ? error.stack?.split('\n').slice(0, 3).join(' ') : error}`,
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

export { faultText }
