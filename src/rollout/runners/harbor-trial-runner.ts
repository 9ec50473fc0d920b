/**
 * Trials of released Harbor (`harbor` on PyPI, 0.24): an attempt is one `harbor trial start`, configured by a file
 * (`harbor.models.trial.config:TrialConfig`). Its outcome is in the `result.json` of its folder
 * (`harbor.models.trial.result:TrialResult`).
 */
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../../base/errors.ts'
import { getLastLine, type ProcessGroupResult, runGroup } from './process-group.ts'
import type { AgentResult, AgentRunner, AgentStatus, AgentTask } from './runner.ts'
import { createSessionEnvironment, toTextVariables } from './session-environment.ts'

/** Fields of Harbor's own configuration, passed unchanged. */
export type HarborFields = Readonly<Record<string, unknown>>

/**
 * The options that released Harbor and a Harbor server have in common, with the names of a RemoteAgentLoop's options.
 */
export interface HarborOptions {
  /** The time limit of a complete trial: environment, agent and verifier, whose own limits are in the task. */
  harborTimeoutMs: number
  agentName?: string | undefined
  agentImportPath?: string | undefined
  agentKwargs?: HarborFields
  /** Additional environment variables of the agent. */
  environmentOverrides?: HarborFields
  environmentKwargs?: HarborFields
}

export interface HarborTrialRunnerOptions extends HarborOptions {
  /** The program as a shell command line, so that it may be `uvx harbor`. */
  harborCommand: string
  /** One of Harbor's environments (`docker`, `modal`, …), or `module.path:ClassName`. */
  harborEnvironment: string
  /** The parent of the trials' folders with logs and artefacts, one per session. Absent: they are temporary. */
  workDir?: string | undefined
}

/** The time for Harbor to remove its sandbox after it was interrupted. */
const GRACE_MS = 60_000
const TRIAL = 'trial'

/** Agents that run in Harbor's process, outside the sandbox, and ignore the variables configured for the agent. */
const AGENTS_OUTSIDE_SANDBOX = /^terminus(-\d+)?$/

/** The fields of `result.json` that are read. */
interface TrialResult {
  verifier_result?: { rewards?: Record<string, unknown> | null } | null
  exception_info?: { exception_type: string; exception_message: string } | null
  agent_result?: unknown
}

/**
 * The status of an attempt by the exception that Harbor reports. All other exceptions are failures of the sandbox or
 * the verifier.
 */
const STATUS_BY_EXCEPTION: Readonly<Record<string, AgentStatus>> = {
  AgentTimeoutError: 'timeout',
  NonZeroAgentExitCodeError: 'failed',
}

/** A runner that runs each attempt as one trial of released Harbor. */
export class HarborTrialRunner implements AgentRunner {
  readonly #options: HarborTrialRunnerOptions

  constructor(options: HarborTrialRunnerOptions) {
    this.#options = options
  }

  /** Checks that Harbor is installed. @throws ProxyError `config_invalid` if it is not */
  async prepare(signal: AbortSignal): Promise<void> {
    const { harborCommand } = this.#options
    const limits = { timeLimitMs: 120_000, graceMs: 1_000, outputLimitBytes: 4096 }
    const end = await runGroup(
      `${harborCommand} --version`,
      { cwd: tmpdir(), env: getTrainerEnvironment(), ...limits },
      signal,
    )
    if (end.exitCode === 0) return
    throw new ProxyError(
      'config_invalid',
      `Harbor cannot be run (${getLastLine(end.output)}): install it with Python 3.12 or newer ` +
        '(pip install harbor), name it with --harbor-command, or name a server with --harbor-url',
    )
  }

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const { workDir, harborCommand, harborTimeoutMs: timeLimitMs } = this.#options
    const folder =
      workDir === undefined
        ? await mkdtemp(join(tmpdir(), 'llm-proxy-harbor-'))
        : join(workDir, task.sessionId)
    try {
      await rm(join(folder, TRIAL), { recursive: true, force: true })
      await mkdir(folder, { recursive: true })
      // The file contains the session's key, so other users must not read it.
      const config = join(folder, 'trial.json')
      await writeFile(config, JSON.stringify(this.#toConfig(task, folder)), { mode: 0o600 })
      const limits = { timeLimitMs, graceMs: GRACE_MS }
      const env = {
        ...getTrainerEnvironment(),
        ...(this.#runsOutsideSandbox(task) && createSessionEnvironment(task)),
      }
      const end = await runGroup(
        `exec ${harborCommand} trial start --config "$TRIAL_CONFIG"`,
        { cwd: folder, env: { ...env, TRIAL_CONFIG: config }, ...limits, stopSignal: 'SIGINT' },
        signal,
      )
      return await readResult(end, join(folder, TRIAL, 'result.json'))
    } finally {
      if (workDir === undefined) await rm(folder, { recursive: true, force: true })
    }
  }

  async close(): Promise<void> {}

  #runsOutsideSandbox({ settings }: AgentTask): boolean {
    return AGENTS_OUTSIDE_SANDBOX.test(settings?.agentName ?? this.#options.agentName ?? '')
  }

  #toConfig(task: AgentTask, folder: string): object {
    const options = { ...this.#options, ...task.settings }
    const { agentName, agentImportPath, harborEnvironment, agentKwargs = {} } = options
    const api = this.#runsOutsideSandbox(task) ? { api_base: task.openaiBaseUrl } : {}
    return {
      task: toTaskConfig(task),
      trial_name: TRIAL,
      trials_dir: folder,
      agent: {
        name: agentName ?? null,
        import_path: agentImportPath ?? null,
        model_name: task.modelName ?? null,
        kwargs: { ...api, ...agentKwargs },
        env: { ...toTextVariables(options.environmentOverrides ?? {}), ...createAgentEnvironment(task) },
      },
      environment: {
        ...(harborEnvironment.includes(':')
          ? { import_path: harborEnvironment }
          : { type: harborEnvironment }),
        kwargs: options.environmentKwargs ?? {},
      },
    }
  }
}

/**
 * Returns Harbor's task configuration: the path of a directory, or a task of Harbor's registry, named `org/name` or
 * `org/name@ref`, where `ref` is a tag, revision or digest.
 */
function toTaskConfig({ taskPath, sample }: AgentTask): object {
  if (taskPath !== undefined) return { path: taskPath }
  const { harbor_task: named } = sample
  if (typeof named === 'string' && named !== '') {
    const [name, ref] = named.split('@', 2)
    return { name, ref }
  }
  throw new Error(
    'the row names no task: it has no local_task_path and no harbor_task, and no dataset directory has its instance_id',
  )
}

/**
 * Returns the variables from which Harbor's agents read the URL and the key of their model, including those of Google's
 * clients and OpenHands.
 */
function createAgentEnvironment(task: AgentTask): Record<string, string> {
  const { openaiBaseUrl, anthropicBaseUrl, apiKey } = task
  return {
    ...createSessionEnvironment(task),
    ANTHROPIC_API_KEY: apiKey,
    GOOGLE_GEMINI_BASE_URL: anthropicBaseUrl,
    GEMINI_API_KEY: apiKey,
    LLM_BASE_URL: openaiBaseUrl,
    LLM_API_KEY: apiKey,
  }
}

/** Returns the environment for Harbor, which needs the keys of its sandboxes and judges, but not those of llm-proxy. */
function getTrainerEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('LLM_PROXY_')))
}

async function readResult(end: ProcessGroupResult, path: string): Promise<AgentResult> {
  const { output } = end
  if (end.timedOut) return { status: 'timeout', rewards: {}, error: 'the trial ran out of time', output }
  const text = await readFile(path, 'utf8').catch(() => undefined)
  if (text === undefined) {
    return {
      status: 'error',
      rewards: {},
      error: `Harbor wrote no result: ${getLastLine(output)}`,
      output,
    }
  }
  const {
    verifier_result: verified,
    exception_info: raised,
    agent_result: details,
  } = JSON.parse(text) as TrialResult
  const rewards = checkRewards(verified?.rewards ?? {})
  if (!raised) return { status: 'completed', rewards, output, details }
  const error = `${raised.exception_type}: ${raised.exception_message}`
  return { status: STATUS_BY_EXCEPTION[raised.exception_type] ?? 'error', rewards, error, output, details }
}

/** Validates rewards. @throws Error for a reward that is not a finite number */
function checkRewards(rewards: Record<string, unknown>): Record<string, number> {
  for (const [name, value] of Object.entries(rewards)) {
    if (typeof value !== 'number' || !Number.isFinite(value)) {
      throw new Error(`the trial's reward '${name}' is not a finite number: ${JSON.stringify(value)}`)
    }
  }
  return rewards as Record<string, number>
}
