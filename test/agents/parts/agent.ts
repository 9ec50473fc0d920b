/** Runs a released agent on a task through a new proxy. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { type FinishedProgram, type Program, runProgram } from './programs.ts'
import { type RigOptions, startRig } from './rig.ts'
import type { RecordedSession } from './session-checks.ts'

/** The time limit of an agent, which only ends a hanging one. On a busy machine, OpenClaw takes 80 s. */
const AGENT_MS = 300_000

const SESSION = 'rollout'

/** The input of an agent's program. */
export interface Job {
  /** The proxy's base URL for this session, as for Anthropic clients; for OpenAI clients append `/v1`. */
  baseUrl: string
  task: string
  /** The session's key; any text where the proxy has no keys. */
  key: string
  /** Empty folders for this agent. */
  home: string
  work: string
}

export interface Agent {
  /** Name with version. */
  name: string
  dialect: 'chat' | 'messages' | 'responses' | 'gemini'
  /** Returns the command that points the agent at the proxy and runs it without a terminal. */
  program(job: Job): Pick<Program, 'command' | 'args' | 'env'>
}

/** Returns an agent that runs twice with the same task, the second time with flags that resume its conversation. */
export const createResumingAgent = (agent: Agent, flags: string): Agent => ({
  ...agent,
  program: (job) => {
    const { command, args, env } = agent.program(job)
    const script = `"$0" "$@" && "$0" ${flags} "$@"`
    return { command: 'sh', args: ['-c', script, command, ...args], env }
  },
})

/** The variables of this environment that an agent's shell needs; none of them configures models. */
export const SHELL_ENV = { PATH: process.env.PATH, TERM: 'dumb', LANG: 'C.UTF-8' }

export interface AgentRun extends FinishedProgram, RecordedSession {
  work: string
}

/** @param createTask returns the task for the agent's folder */
export async function runAgent(
  t: Test,
  agent: Agent,
  setup: Omit<RigOptions, 'folder'>,
  createTask: (folder: string) => string,
): Promise<AgentRun> {
  // Outside the checkout, because agents look for a repository around their folder.
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-real-agent-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }))
  const [home, work, temporary] = ['home', 'work', 'tmp'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ]
  for (const path of [home, work, temporary]) mkdirSync(path)
  const rig = await startRig(t, { ...setup, folder })
  const key = await rig.createSession(SESSION)
  const job = { baseUrl: `${rig.url}/${SESSION}`, task: createTask(work), key, home, work }
  const { env, ...program } = agent.program(job)
  const finished = await runProgram({ ...program, cwd: work, env: { ...env, TMPDIR: temporary } }, AGENT_MS)
  const { turns = [] } = await rig.get(`/sessions/${SESSION}`)
  const { trajectories: rows = [] } = await rig.get(`/sessions/${SESSION}/trajectories`)
  return { ...finished, work, turns, rows }
}
