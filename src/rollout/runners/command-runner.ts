import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type CommandLine, getLastLine, type ProcessGroupResult, runGroup } from './process-group.ts'
import type { AgentResult, AgentRunner, AgentTask, Sample } from './runner.ts'
import { openSandbox, type Sandbox, type SandboxOptions, type SandboxPaths } from './sandbox.ts'
import { createSessionEnvironment, getInheritedEnvironment, toTextVariables } from './session-environment.ts'
import { type RewardVerifier, readRewards } from './verifier.ts'

export interface CommandRunnerOptions {
  /** The command that runs the agent. */
  command: CommandLine
  /** The command or function that judges the finished work; without it the runner reports no reward. */
  verifier?: CommandLine | RewardVerifier | undefined
  /** The time limit of the agent, and of the verifier. */
  timeLimitMs?: number
  /** Additional variables of the agent; those of the session override them. */
  environment?: Readonly<Record<string, unknown>>
  /** The parent of the attempts' directories, which are then kept. Absent: they are temporary. */
  workDir?: string | undefined
  /** The time between requesting an agent to stop and killing it. */
  graceMs?: number
  /** The sandbox of agent and verifier. Default: bubblewrap if it works. */
  sandbox?: SandboxOptions
  /** Variables of the trainer's environment that the verifier receives, such as a judge's key. */
  verifierEnvironment?: readonly string[]
  /** Columns of the row that only the verifier receives. Default: those that contain answers in common data sets. */
  hiddenColumns?: readonly string[] | undefined
  /** Called once if agents run without a sandbox. Default: `process.emitWarning`. */
  warn?(text: string): void
}

const TIME_LIMIT_MS = 30 * 60_000
const GRACE_MS = 5_000
/** Linux limits a variable to 128 KiB (`MAX_ARG_STRLEN`), including its name. */
const VARIABLE_LIMIT_BYTES = 128 * 1024 - 100

/** The paths of one attempt's files. */
interface AttemptFiles {
  root: string
  work: string
  task: string
}

/** The paths of the verifier's files, in a directory that is created after the agent has ended. */
interface VerifierFiles {
  root: string
  task: string
  output: string
  reward: string
}

/**
 * Columns that are hidden from agents, which can read all they receive. verl's scripts write the ground truth into
 * `reward_model`, and worked solutions into `extra_info`; GSM8K and MATH have `answer` and `solution`, SWE-bench
 * `patch` and `test_patch`.
 * @see https://github.com/verl-project/verl/blob/main/examples/data_preprocess/gsm8k.py
 */
const HIDDEN_COLUMNS = [
  'reward_model',
  'extra_info',
  ...['answer', 'solution', 'ground_truth', 'patch', 'test_patch'],
]

/** The directories of a Harbor task that only the verifier may read: its tests and its solution. */
const ANSWER_DIRECTORIES = ['tests', 'solution']

/**
 * A runner that starts each agent as a command on this machine, in its own directory and process group; docs/runners.md
 * describes its environment.
 */
export class CommandRunner implements AgentRunner {
  readonly #options: CommandRunnerOptions
  readonly #sandbox: Sandbox

  /** @throws ProxyError `start_failed` when bubblewrap is required and does not work */
  constructor(options: CommandRunnerOptions) {
    this.#options = options
    const { sandbox = { mode: 'auto' }, workDir, warn = (text) => process.emitWarning(text) } = options
    const hidden = [...(sandbox.hidden ?? []), ...(workDir === undefined ? [] : [workDir])]
    this.#sandbox = openSandbox({ ...sandbox, hidden })
    const { missing } = this.#sandbox
    if (missing !== undefined) warn(`trusted agents only: there is no sandbox around them (${missing})`)
  }

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const { command, workDir } = this.#options
    const files = await this.#makeFiles(task)
    try {
      const end = await this.#runCommand(
        command,
        createAgentView(task, files),
        this.#agentEnvironment(task, files),
        signal,
      )
      const { output } = end
      if (workDir !== undefined) await replaceFile(join(files.root, 'output.txt'), output)
      if (end.timedOut) return { status: 'timeout', rewards: {}, error: 'the agent ran out of time', output }
      if (end.exitCode !== 0) return { status: 'failed', rewards: {}, error: describeEnd(end), output }
      const rewards = await this.#verify(task, files, output, signal)
      return { status: 'completed', rewards, output }
    } finally {
      if (workDir === undefined) await rm(files.root, { recursive: true, force: true })
    }
  }

  async close(): Promise<void> {}

  async #makeFiles({ sessionId, sample }: AgentTask): Promise<AttemptFiles> {
    const { workDir, hiddenColumns = HIDDEN_COLUMNS } = this.#options
    const root =
      workDir === undefined ? await mkdtemp(join(tmpdir(), 'llm-proxy-agent-')) : join(workDir, sessionId)
    const [work, task] = [join(root, 'work'), join(root, 'task.json')]
    await mkdir(work, { recursive: true })
    await replaceFile(task, JSON.stringify(withoutColumns(sample, hiddenColumns)))
    return { root, work, task }
  }

  #agentEnvironment(task: AgentTask, files: AttemptFiles): NodeJS.ProcessEnv {
    return {
      ...getInheritedEnvironment(),
      ...toTextVariables(task.settings?.environmentOverrides ?? this.#options.environment ?? {}),
      // Anthropic's clients would send it in addition to the session's key.
      ANTHROPIC_API_KEY: undefined,
      ...createSessionEnvironment(task),
      ...createTaskEnvironment(task, files.task),
    }
  }

  #runCommand(command: CommandLine, view: SandboxPaths, env: NodeJS.ProcessEnv, signal: AbortSignal) {
    const { timeLimitMs = TIME_LIMIT_MS, graceMs = GRACE_MS } = this.#options
    const sandboxed = this.#sandbox.missing === undefined
    const options = { cwd: view.cwd, env, timeLimitMs, graceMs, sandboxed }
    return runGroup(this.#sandbox.wrap(command, view), options, signal)
  }

  async #verify(
    task: AgentTask,
    { work }: AttemptFiles,
    output: string,
    signal: AbortSignal,
  ): Promise<Record<string, number>> {
    const { verifier, verifierEnvironment } = this.#options
    if (verifier === undefined) return {}
    if (typeof verifier === 'function') return verifier({ task, workDir: work, output }, signal)
    const files = await makeVerifierFiles(task.sample, output)
    // The session's variables are omitted: LLM requests of a verifier must not be recorded, and trained on, as the
    // agent's.
    const env = {
      ...getInheritedEnvironment(verifierEnvironment),
      ...createTaskEnvironment(task, files.task),
      AGENT_OUTPUT_FILE: files.output,
      REWARD_FILE: files.reward,
    }
    const view = { cwd: work, writable: [files.root], readable: getReadablePaths(task) }
    try {
      return await readRewards(await this.#runCommand(verifier, view, env, signal), files.reward)
    } finally {
      await rm(files.root, { recursive: true, force: true })
    }
  }
}

function withoutColumns(sample: Sample, hidden: readonly string[]): Sample {
  return Object.fromEntries(Object.entries(sample).filter(([name]) => !hidden.includes(name)))
}

/**
 * Returns the paths that the agent can access. The task's directory is read-only, because all attempts share it, and
 * its tests and solution are hidden.
 */
function createAgentView(task: AgentTask, { work, task: taskFile }: AttemptFiles): SandboxPaths {
  const { taskPath } = task
  const masked = taskPath === undefined ? [] : ANSWER_DIRECTORIES.map((name) => join(taskPath, name))
  return { cwd: work, readable: [taskFile, ...getReadablePaths(task)], masked }
}

function getReadablePaths({ taskPath }: AgentTask): string[] {
  return taskPath === undefined ? [] : [taskPath]
}

/** Creates the verifier's files in a new directory, which cannot contain files of the agent, such as a reward. */
async function makeVerifierFiles(sample: Sample, outputText: string): Promise<VerifierFiles> {
  const root = await mkdtemp(join(tmpdir(), 'llm-proxy-verifier-'))
  const files = {
    root,
    task: join(root, 'task.json'),
    output: join(root, 'output.txt'),
    reward: join(root, 'reward'),
  }
  await replaceFile(files.task, JSON.stringify(sample))
  await replaceFile(files.output, outputText)
  return files
}

/** Writes a file after removing anything at its path. The flag `wx` rejects a link that is created there meanwhile. */
async function replaceFile(path: string, text: string): Promise<void> {
  await rm(path, { recursive: true, force: true })
  await writeFile(path, text, { flag: 'wx' })
}

function createTaskEnvironment(
  { trialId, sample, taskPath }: AgentTask,
  taskFile: string,
): Record<string, string> {
  const prompt = getPromptText(sample)
  const fits =
    prompt !== undefined && Buffer.byteLength(prompt) < VARIABLE_LIMIT_BYTES && !prompt.includes('\0')
  return {
    TRIAL_ID: trialId,
    TASK_FILE: taskFile,
    ...(taskPath !== undefined && { TASK_DIR: taskPath }),
    ...(fits && { TASK_PROMPT: prompt }),
  }
}

/** Describes the end of a command: `exit code 3: the last line that it printed` */
function describeEnd({ exitCode, signal, output }: ProcessGroupResult): string {
  const lastLine = getLastLine(output)
  return `${signal === null ? `exit code ${exitCode}` : `ended by ${signal}`}${lastLine ? `: ${lastLine}` : ''}`
}

/**
 * Returns the prompt of a row, which is in `raw_prompt` (verl's name) or `prompt`: its text, or the texts of its user
 * messages.
 */
function getPromptText({ raw_prompt: rawPrompt, prompt }: Sample): string | undefined {
  const content = rawPrompt ?? prompt
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return undefined
  return content.flatMap(getUserTexts).join('\n\n')
}

function getUserTexts(message: unknown): string[] {
  if (typeof message !== 'object' || message === null) return []
  const { role, content } = message as { role?: unknown; content?: unknown }
  return role === 'user' && typeof content === 'string' ? [content] : []
}
