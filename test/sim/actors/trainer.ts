/** A trainer: it creates, rewards, resets, ends and deletes sessions at bad moments, and updates weights. */
import { sleep, type World } from '../world/world.ts'
import { sendRequest } from './client.ts'
import type { SimEngine } from './engine.ts'
import type { History, Operation, OperationKind } from './history.ts'

export interface TrainerPlan {
  sessionId: string
  creates: boolean
  /** Overrides the proxy's option. */
  continueResponses: boolean | undefined
  /** Operations while agents run. */
  operations: readonly { atMs: number; kind: OperationKind }[]
  completes: boolean
  random: () => number
}

export async function runTrainer(
  world: World,
  history: History,
  { sessionId, creates, continueResponses, operations, completes, random }: TrainerPlan,
  agentsDone: Promise<unknown>,
): Promise<void> {
  const operate = (kind: OperationKind) => runOperation(world, history, { kind, sessionId, random })
  if (creates) await runOperation(world, history, { kind: 'create', sessionId, random, continueResponses })
  const operationsDone = Promise.all(
    operations.map(async ({ atMs, kind }) => {
      await sleep(atMs)
      await operate(kind)
    }),
  )
  await Promise.all([agentsDone, operationsDone])
  if (!completes) return
  await operate('reward')
  for (let attempts = 0; attempts < 3; attempts += 1) {
    const { status } = await operate('complete')
    if (status === 200) return
    await sleep(1_000)
  }
}

type OperationPlan = Pick<TrainerPlan, 'sessionId' | 'random'> &
  Partial<Pick<TrainerPlan, 'continueResponses'>> & { kind: OperationKind }

async function runOperation(
  world: World,
  history: History,
  { kind, sessionId, random, continueResponses }: OperationPlan,
): Promise<Operation> {
  const operation: Operation = { kind, sessionId, sentAtMs: world.time.nowMs, continueResponses }
  history.operations.push(operation)
  if (kind === 'reward') operation.reward = Math.floor(random() * 100) / 4
  world.log('trainer', `${kind} ${sessionId}`)
  const { status, isComplete, text } = await sendRequest(world, createOperationRequest(operation))
  operation.endedAtMs = world.time.nowMs
  // A partial response to a change is as inconclusive as none.
  operation.status = isComplete ? status : 0
  operation.found = !text.includes('"not_found"')
  world.log('trainer', `${kind} ${sessionId}: ${operation.status}`)
  return operation
}

function createOperationRequest({ kind, sessionId, reward, continueResponses }: Operation) {
  const path = `/sessions/${sessionId}`
  if (kind === 'create')
    return {
      method: 'POST',
      path: '/sessions',
      body: { session_id: sessionId, continue_responses: continueResponses },
    } as const
  if (kind === 'delete') return { method: 'DELETE', path } as const
  if (kind === 'read') return { method: 'GET', path: `${path}/trajectories` } as const
  if (kind === 'reward') return { method: 'POST', path: `${path}/reward`, body: { reward } } as const
  return { method: 'POST', path: `${path}/${kind}` } as const
}

/** Updates the weights of all engines, as trainers do: no engine may sample meanwhile. */
export async function updateWeights(
  world: World,
  engines: readonly SimEngine[],
  { version, isUndisturbed }: { version: string; isUndisturbed: boolean },
): Promise<void> {
  const countStarted = () =>
    engines.reduce((sum, engine) => sum + [...engine.startedCounts.values()].reduce((a, b) => a + b, 0), 0)
  const paused = await sendRequest(world, {
    method: 'POST',
    path: '/admin/pause?drain_timeout_s=30',
    timeoutMs: 60_000,
  })
  world.log('trainer', `pause: ${paused.status} ${paused.text}`)
  const isDrained = paused.isComplete && paused.status === 200 && JSON.parse(paused.text).drained === true
  const before = countStarted()
  await sleep(500)
  if (isUndisturbed && isDrained && countStarted() !== before)
    world.reportViolation('an engine received a request during a pause')
  if (isUndisturbed && isDrained && engines.some(({ running }) => running > 0))
    world.reportViolation('the proxy reported a pause as drained while an engine still sampled')
  for (const engine of engines) engine.replaceWeights(version)
  world.log('trainer', `weights are ${version}`)
  await resume(world)
}

/**
 * Updates the weights as asynchronous trainers do: each engine aborts its requests, and queues new ones until it has the
 * new weights.
 */
export async function abortForWeights(
  world: World,
  engines: readonly SimEngine[],
  version: string,
): Promise<void> {
  for (const engine of engines) engine.pause()
  for (const engine of engines) {
    await sleep(2_000 * world.random.cuts() ** 2)
    engine.replaceWeights(version)
    engine.resume()
  }
  world.log('trainer', `weights are ${version}, after aborts`)
}

/** Resumes the proxy; retries until it confirms. */
export async function resume(world: World): Promise<void> {
  for (let attempts = 0; attempts < 20; attempts += 1) {
    const { status } = await sendRequest(world, { method: 'POST', path: '/admin/resume', timeoutMs: 30_000 })
    world.log('trainer', `resume: ${status}`)
    if (status === 200) return
    await sleep(2_000)
  }
}
