/**
 * A small task for any agent: it writes a file, runs a command and reads the result, each with a separate tool, as the
 * model's script instructs.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import t, { type Test } from 'tap'
import { IS_FULL } from '../../helpers/tier.ts'
import { type Agent, type AgentRun, runAgent } from './agent.ts'
import { type SampledPart, startCuttingEngine, startLosingEngine } from './losing-engine.ts'
import { SETUPS, type Setup } from './rig.ts'
import { getPlaybook, type Step, taskIn } from './script.ts'
import { checkRows, checkScript, type Turn } from './session-checks.ts'

/** Content of the file to be written, whose output is checked. */
export const HELLO = 'echo "hello from $((6 * 7))"\n'
const PRINTED = 'hello from 42\n'

export interface FileTask {
  /** Steps with the agent's own tools. */
  steps: readonly Step[]
  /** The agent does not send reasoning back: in chat mode the engine would render a different history. */
  forgetsReasoning?: boolean
}

/**
 * Where the proxy requires keys: in one setup of each list, because the check depends on the dialect; under FULL in all
 * setups.
 */
function keysIn({ mode }: Setup): boolean[] {
  return IS_FULL ? [false, true] : [mode === 'relay']
}

/** Gives the agent the task in each setup, and checks its work and what was recorded. */
export async function testFileTask(
  agent: Agent,
  task: FileTask,
  setups: readonly Setup[] = SETUPS,
): Promise<void> {
  for (const setup of setups.flatMap((one) => keysIn(one).map((keyed) => ({ ...one, keyed })))) {
    const keys = setup.keyed ? 'with keys' : 'without keys'
    const title = `${agent.name} in ${setup.mode} mode, ${setup.prompts} mode, ${keys}`
    await t.test(`${title}: does its task, and its session is one row`, async (t) => {
      const isTokenMode = setup.prompts === 'token'
      const steps = task.forgetsReasoning && !isTokenMode ? task.steps.map(withoutReasoning) : task.steps
      // In chat mode the prompt is the agent's echo; in token mode the agent's changes to it must not matter.
      const playbook = getPlaybook(steps, isTokenMode ? 'untidy' : 'tidy')
      const run = await runAgent(t, agent, { ...setup, playbook }, taskIn)
      checkWork(t, run)
      checkSession(t, run, agent, steps)
    })
  }
}

function checkWork(t: Test, { code, output, work }: AgentRun): void {
  t.equal(code, 0, 'it ends well', { output })
  const read = (name: string) => readFileSync(join(work, name), 'utf8')
  t.equal(read('hello.sh').trimEnd(), HELLO.trimEnd(), 'the agent wrote the file')
  t.equal(read('printed.txt'), PRINTED, 'the agent ran the command')
}

function withoutReasoning({ thinks: _, ...step }: Step): Step {
  return step
}

function checkSession(t: Test, { turns, rows, work }: AgentRun, { dialect }: Agent, steps: readonly Step[]) {
  for (const turn of turns) t.match(turn, { status: 'completed', dialect }, `turn ${turn.index}`)
  const talk = turns.filter((turn) => !isSideCall(turn))
  checkScript(t, talk, steps, work)
  t.match(JSON.stringify(talk.at(-1)?.request_messages), 'hello from 42', 'the model read the result')
  t.ok(
    talk.slice(1).every(({ annotations }) => annotations.prompt?.reason === 'extended'),
    'each prompt begins with the prompt and the completion before it',
  )
  const indexes = talk.map(({ index }) => index)
  const ofTalk = rows.filter((row) => row.turns.some(({ index }) => indexes.includes(index)))
  t.strictSame(
    ofTalk.map((row) => ({ line: row.line, turns: row.turns.map(({ index }) => index) })),
    [{ line: 'main', turns: indexes }],
    'the conversation is one row',
  )
  checkRows(t, talk, ofTalk)
}

/** Side requests have no tools, such as one for a title of the conversation. */
function isSideCall({ tools }: Turn): boolean {
  return tools === null || tools.length === 0
}

/** How an agent handles the loss of its engine. */
export interface LostEngineTask extends FileTask {
  /** The test runs by default, and not only under FULL: the dialect has a specific error event in streams. */
  isDefault?: boolean
  /** Rows of the conversation; default: 1. */
  rows?: number
}

/** Breaks the engine's connection in the middle of its second response: the agent must retry and complete its task. */
export async function testLostEngine(
  agent: Agent,
  { steps, rows = 1, isDefault }: LostEngineTask,
): Promise<void> {
  if (!isDefault && !IS_FULL) return
  await t.test(`${agent.name} completes its task when its engine is lost in mid-stream`, async (t) => {
    const startBetween = (t: Test, engineUrl: string) => startLosingEngine(t, engineUrl, 1)
    const setup = { mode: 'local', prompts: 'token', startBetween } as const
    const run = await runAgent(t, agent, { ...setup, playbook: getPlaybook(steps, 'untidy') }, taskIn)
    t.equal(run.code, 0, 'it ends well', { output: run.output })
    t.equal(readFileSync(join(run.work, 'printed.txt'), 'utf8'), PRINTED, 'the agent ran the command')
    const failed = run.turns.filter(({ status }) => status !== 'completed')
    t.match(failed, [{ status: 'failed', error: { code: 'engine_lost' } }], 'one turn failed')
    const talk = run.turns.filter((turn) => turn.status === 'completed' && !isSideCall(turn))
    const indexes = new Set(talk.map(({ index }) => index))
    const ofTalk = run.rows.filter((row) => row.turns.some(({ index }) => indexes.has(index)))
    t.equal(ofTalk.length, rows, 'its rows', {
      rows: ofTalk.map(({ turns }) => turns.map(({ index }) => index)),
    })
    checkRows(t, talk, ofTalk)
  })
}

/**
 * Cuts each response of the engine twice under `--continue-responses`: the agent must not notice, and the parts are one
 * turn each, and one row.
 */
export async function testContinuedResponses(
  agent: Agent,
  { steps, isDefault }: Pick<LostEngineTask, 'steps' | 'isDefault'>,
): Promise<void> {
  if (!isDefault && !IS_FULL) return
  for (const mode of IS_FULL ? (['local', 'relay'] as const) : (['local'] as const)) {
    const title = `${agent.name} in ${agent.dialect}, ${mode} mode: completes its task in one row`
    await t.test(`${title} when each response continues after cuts`, async (t) => {
      const parts: SampledPart[] = []
      const startBetween = (t: Test, engineUrl: string) => startCuttingEngine(t, engineUrl, parts)
      const setup = { mode, prompts: 'token', flags: ['--continue-responses'], startBetween } as const
      const run = await runAgent(t, agent, { ...setup, playbook: getPlaybook(steps, 'untidy') }, taskIn)
      checkWork(t, run)
      checkSession(t, run, agent, steps)
      checkParts(t, run.turns, parts)
    })
  }
}

/** Checks that the turns are what the engine sampled, part by part, and that it sampled nothing else. */
function checkParts(t: Test, turns: readonly Turn[], parts: readonly SampledPart[]): void {
  const ofTurns = turns.flatMap((turn) => {
    const requests = turn.annotations.engine_requests ?? []
    const reasons = requests.map(({ end_reason }) => end_reason)
    t.strictSame(reasons, ['engine_lost', 'abort', 'stop'], `turn ${turn.index}: its engine requests`)
    const [prompt, completion] = [turn.prompt_token_ids.length, turn.completion_token_ids.length]
    t.equal(requests.at(-1)?.end, completion, 'the parts are the complete response')
    const usage = { prompt_tokens: prompt, completion_tokens: completion }
    t.match(turn.usage, usage, 'the usage has the prompt once')
    return requests.map(({ start, end }) => ({
      prompt: [...turn.prompt_token_ids, ...turn.completion_token_ids.slice(0, start)],
      ids: turn.completion_token_ids.slice(start, end),
    }))
  })
  t.equal(parts.length, 3 * turns.length, 'the agent repeated no request')
  const write = (all: readonly SampledPart[]) => all.map((part) => JSON.stringify(part)).sort()
  t.ok(isDeepStrictEqual(write(ofTurns), write(parts)), 'each part is what the engine sampled')
}
