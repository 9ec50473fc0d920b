import { ProxyError } from '../base/errors.ts'
import { getSecretFiles } from '../proxy/config/load.ts'
import { SERVE } from '../proxy/config/options/serve.ts'
import type { RunnerConfig } from './options.ts'
import { AgentCoreRunner } from './runners/agentcore/agentcore-runner.ts'
import { CommandRunner } from './runners/command-runner.ts'
import { HarborRunner } from './runners/harbor-runner.ts'
import { HarborTrialRunner } from './runners/harbor-trial-runner.ts'
import { HttpRunner } from './runners/http-runner.ts'
import type { AgentRunner } from './runners/runner.ts'

/** The files that agents must not read, besides those that the options of the runner name. */
interface SecretFiles {
  readonly tasks: string | undefined
  readonly output: string
  /** The database of the proxy, if it runs in this process. */
  readonly db: string
}

/**
 * Creates the runner that the options select.
 * @param print prints warnings, before anything runs
 * @throws ProxyError `config_invalid` when an option that the runner needs is missing
 */
export function createRunner(
  config: RunnerConfig & Partial<SecretFiles>,
  print: (text: string) => void,
): AgentRunner {
  const { command, webhookUrl, timeLimitMs, hiddenColumns } = config
  switch (getRunnerKind(config)) {
    case 'harbor':
      return new HarborTrialRunner(config)
    case 'harbor-server':
      return new HarborRunner(config)
    case 'http':
      if (webhookUrl === undefined) throw createMissingOptionError('http', '--webhook-url')
      return new HttpRunner({ webhookUrl, timeLimitMs })
    case 'agentcore':
      return createAgentCoreRunner(config, print)
    case 'command':
      if (command === undefined) throw createMissingOptionError('command', '--command')
      return new CommandRunner({
        command,
        timeLimitMs,
        environment: config.environmentOverrides,
        sandbox: { mode: config.sandbox, visible: config.sandboxPaths, hidden: getSecretPaths(config) },
        verifierEnvironment: config.verifierEnv,
        warn: print,
        verifier: config.verifier,
        workDir: config.workDir,
        hiddenColumns: hiddenColumns.length > 0 ? hiddenColumns : undefined,
      })
  }
}

/** Returns the configured kind of runner, or the kind that the other options imply. */
function getRunnerKind({
  runner,
  command,
  agentcoreArn,
  harborUrl,
}: RunnerConfig): NonNullable<RunnerConfig['runner']> {
  // Earlier releases used the name `harbor` for a Harbor server, which has a URL.
  if (runner === 'harbor' && harborUrl !== undefined) return 'harbor-server'
  if (runner !== undefined) return runner
  if (agentcoreArn === undefined) return 'command'
  if (command === undefined) return 'agentcore'
  throw new ProxyError(
    'config_invalid',
    '--command and --agentcore-arn are both set: select one with --runner',
  )
}

function createAgentCoreRunner(config: RunnerConfig, warn: (text: string) => void): AgentCoreRunner {
  const { agentcoreArn: arn, timeLimitMs } = config
  if (arn === undefined) throw createMissingOptionError('agentcore', '--agentcore-arn')
  return new AgentCoreRunner({
    arn,
    timeLimitMs,
    qualifier: config.agentcoreQualifier,
    results: config.agentcoreResults,
    bucket: config.agentcoreBucket,
    queueUrl: config.agentcoreQueue,
    experiment: config.agentcoreExperiment,
    tps: config.agentcoreTps,
    maxSessions: config.agentcoreSessions,
    ledger: config.agentcoreLedger,
    warn,
  })
}

/**
 * Returns the paths that agents must not read: tasks with their ground truth, the rows of other samples, complete data
 * sets, key files, `.env`, and the database of a proxy on this machine.
 */
function getSecretPaths(config: RunnerConfig & Partial<SecretFiles>): string[] {
  const { tasks, output, datasetDirs } = config
  const db = config.db ?? (process.env.LLM_PROXY_DB || SERVE.options.db.default)
  const record = ['', '-wal', '-shm'].map((suffix) => `${db}${suffix}`)
  const outputs = output === undefined ? [] : [output, `${output}.jsonl`]
  const rollouts = [...(tasks === undefined ? [] : [tasks]), ...outputs, ...datasetDirs]
  return [...rollouts, ...getSecretFiles(config), '.env', ...record]
}

function createMissingOptionError(runner: string, flag: string): ProxyError {
  return new ProxyError('config_invalid', `the ${runner} runner needs ${flag}, or choose another --runner`)
}
