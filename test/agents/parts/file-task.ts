/**
 * A small task for any agent: according to the model's script it writes a file, runs a command and reads the result,
 * each with a separate tool.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import t, { type Test } from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
import { type Agent, type AgentRun, runAgent } from './agent.ts'
import { type SampledPart, startCuttingEngine, startDisconnectingEngine } from './faulty-engines.ts'
import { SETUPS, type Setup } from './rig.ts'
import { createPlaybook, createTask, type Step } from './script.ts'
import { checkRows, checkScript, type Row, type Turn } from './session-checks.ts'

/** Content of the file to be written, whose output is checked. */
export const HELLO = 'echo "hello from $((6 * 7))"\n'
const PRINTED = 'hello from 42\n'

export interface FileTask {
  /** Steps with the agent's own tools. */
  steps: readonly Step[]
  /** The agent omits reasoning from its echo: in chat mode the engine would render a different history. */
  omitsReasoning?: boolean
}

/** Returns whether the proxy requires keys: in relay mode only, because the check depends on the dialect; FULL: both. */
function getKeyVariants({ mode }: Setup): boolean[] {
  return IS_FULL ? [false, true] : [mode === 'relay']
}

/** Runs the agent on the task in each setup, and checks its files and the recorded session. */
export async function testFileTask(
  agent: Agent,
  task: FileTask,
  setups: readonly Setup[] = SETUPS,
): Promise<void> {
  const variants = setups.flatMap((setup) =>
    getKeyVariants(setup).map((requiresKeys) => ({ ...setup, requiresKeys })),
  )
  for (const setup of variants) {
    const keys = setup.requiresKeys ? 'with keys' : 'without keys'
    const title = `${agent.name} in ${setup.mode} mode, ${setup.prompts} mode, ${keys}`
    await t.test(`${title}: does its task, and its session is one row`, async (t) => {
      const isTokenMode = setup.prompts === 'token'
      const steps = task.omitsReasoning && !isTokenMode ? task.steps.map(withoutReasoning) : task.steps
      // In chat mode the prompt is the agent's echo; in token mode the agent's changes to it must not matter.
      const playbook = createPlaybook(steps, isTokenMode ? 'untidy' : 'tidy')
      const run = await runAgent(t, agent, { ...setup, playbook }, createTask)
      checkWork(t, run)
      checkSession(t, run, agent, steps)
    })
  }
}

function checkWork(t: Test, { code, output, work }: AgentRun): void {
  t.equal(code, 0, 'it exits with 0', { output })
  const read = (name: string) => readFileSync(join(work, name), 'utf8')
  t.equal(read('hello.sh').trimEnd(), HELLO.trimEnd(), 'the agent wrote the file')
  t.equal(read('printed.txt'), PRINTED, 'the agent ran the command')
}

function withoutReasoning({ reasoning: _, ...step }: Step): Step {
  return step
}

function checkSession(t: Test, { turns, rows, work }: AgentRun, { dialect }: Agent, steps: readonly Step[]) {
  for (const turn of turns) t.match(turn, { status: 'completed', dialect }, `turn ${turn.index}`)
  const mainTurns = turns.filter((turn) => !isSideRequest(turn))
  checkScript(t, mainTurns, steps, work)
  t.match(
    JSON.stringify(mainTurns.at(-1)?.request_messages),
    'hello from 42',
    'the model receives the result',
  )
  t.ok(
    mainTurns.slice(1).every(({ annotations }) => annotations.prompt?.reason === 'extended'),
    'each prompt begins with the previous prompt and completion',
  )
  const indexes = mainTurns.map(({ index }) => index)
  const mainRows = findRows(rows, mainTurns)
  t.strictSame(
    mainRows.map((row) => ({ line: row.line, turns: row.turns.map(({ index }) => index) })),
    [{ line: 'main', turns: indexes }],
    'the conversation is one row',
  )
  checkRows(t, mainTurns, mainRows)
}

/** Returns the rows that contain any of the turns. */
function findRows(rows: readonly Row[], turns: readonly Turn[]): Row[] {
  const indexes = new Set(turns.map(({ index }) => index))
  return rows.filter((row) => row.turns.some(({ index }) => indexes.has(index)))
}

/** Returns whether a request has no tools, such as one for a title of the conversation. */
function isSideRequest({ tools }: Turn): boolean {
  return tools === null || tools.length === 0
}

/** A file task during which the engine disconnects. */
export interface DisconnectTask extends FileTask {
  /** The test runs without FULL too, because the dialect has a specific error event in streams. */
  isDefault?: boolean
  /** Rows of the conversation; default: 1. */
  rows?: number
}

/** Disconnects the engine in the middle of its second response: the agent must retry and complete its task. */
export async function testEngineDisconnect(
  agent: Agent,
  { steps, rows = 1, isDefault }: DisconnectTask,
): Promise<void> {
  if (!isDefault && !IS_FULL) return
  await t.test(`${agent.name} completes its task when its engine disconnects in mid-stream`, async (t) => {
    const startForwarder = (t: Test, engineUrl: string) => startDisconnectingEngine(t, engineUrl, 1)
    const setup = { mode: 'local', prompts: 'token', startForwarder } as const
    const run = await runAgent(t, agent, { ...setup, playbook: createPlaybook(steps, 'untidy') }, createTask)
    t.equal(run.code, 0, 'it exits with 0', { output: run.output })
    t.equal(readFileSync(join(run.work, 'printed.txt'), 'utf8'), PRINTED, 'the agent ran the command')
    const failed = run.turns.filter(({ status }) => status !== 'completed')
    t.match(failed, [{ status: 'failed', error: { code: 'engine_lost' } }], 'one turn failed')
    const mainTurns = run.turns.filter((turn) => turn.status === 'completed' && !isSideRequest(turn))
    const mainRows = findRows(run.rows, mainTurns)
    t.equal(mainRows.length, rows, 'its rows', {
      rows: mainRows.map(({ turns }) => turns.map(({ index }) => index)),
    })
    checkRows(t, mainTurns, mainRows)
  })
}

/**
 * Cuts each response of the engine twice under `--continue-responses`: the agent must not notice, and the parts of a
 * response are one turn, all turns one row.
 */
export async function testContinuedResponses(
  agent: Agent,
  { steps, isDefault }: Pick<DisconnectTask, 'steps' | 'isDefault'>,
): Promise<void> {
  if (!isDefault && !IS_FULL) return
  for (const mode of IS_FULL ? (['local', 'relay'] as const) : (['local'] as const)) {
    const title = `${agent.name} in ${agent.dialect}, ${mode} mode: completes its task in one row`
    await t.test(`${title} when each response continues after cuts`, async (t) => {
      const parts: SampledPart[] = []
      const startForwarder = (t: Test, engineUrl: string) => startCuttingEngine(t, engineUrl, parts)
      const setup = { mode, prompts: 'token', flags: ['--continue-responses'], startForwarder } as const
      const run = await runAgent(
        t,
        agent,
        { ...setup, playbook: createPlaybook(steps, 'untidy') },
        createTask,
      )
      checkWork(t, run)
      checkSession(t, run, agent, steps)
      checkParts(t, run.turns, parts)
    })
  }
}

/** Checks that the turns consist of exactly the parts that the engine sampled. */
function checkParts(t: Test, turns: readonly Turn[], parts: readonly SampledPart[]): void {
  const recordedParts = turns.flatMap((turn) => {
    const requests = turn.annotations.engine_requests ?? []
    const reasons = requests.map(({ end_reason }) => end_reason)
    t.strictSame(reasons, ['engine_lost', 'abort', 'stop'], `turn ${turn.index}: its engine requests`)
    const [prompt, completion] = [turn.prompt_token_ids.length, turn.completion_token_ids.length]
    t.equal(requests.at(-1)?.end, completion, 'the parts are the complete completion')
    const usage = { prompt_tokens: prompt, completion_tokens: completion }
    t.match(turn.usage, usage, 'the usage counts the prompt once')
    return requests.map(({ start, end }) => ({
      prompt: [...turn.prompt_token_ids, ...turn.completion_token_ids.slice(0, start)],
      ids: turn.completion_token_ids.slice(start, end),
    }))
  })
  t.equal(parts.length, 3 * turns.length, 'the agent repeated no request')
  const serialize = (parts: readonly SampledPart[]) => parts.map((part) => JSON.stringify(part)).sort()
  t.ok(isDeepStrictEqual(serialize(recordedParts), serialize(parts)), 'each part is as sampled')
}
