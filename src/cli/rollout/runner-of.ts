import type { RolloutConfig } from '../../config/rollout-options.ts'
import { ProxyError } from '../../errors.ts'
import { CommandRunner } from '../../rollout/runners/command-runner.ts'
import { HarborRunner } from '../../rollout/runners/harbor-runner.ts'
import { HttpRunner } from '../../rollout/runners/http-runner.ts'
import type { AgentRunner } from '../../rollout/runners/runner.ts'

/** @param say tells the user, before anything runs @throws ProxyError `config_invalid` when it lacks what the runner needs */
export function runnerOf(config: RolloutConfig, say: (text: string) => void): AgentRunner {
  const {
    runner,
    command,
    verifier,
    webhookUrl,
    timeLimitMs,
    workDir,
    environmentOverrides,
    sandbox,
    sandboxPaths,
    verifierEnv,
  } = config
  switch (runner) {
    case 'harbor':
      return new HarborRunner(config)
    case 'http':
      if (webhookUrl === undefined) throw lacks('http', '--webhook-url')
      return new HttpRunner({ webhookUrl, timeLimitMs })
    case 'command':
      if (command === undefined) throw lacks('command', '--command')
      return new CommandRunner({
        command,
        timeLimitMs,
        environment: environmentOverrides,
        sandbox: { mode: sandbox, visible: sandboxPaths, hidden: secretsOf(config) },
        verifierEnvironment: verifierEnv,
        warn: say,
        ...(verifier !== undefined && { verifier }),
        ...(workDir !== undefined && { workDir }),
      })
  }
}

/** What the rollouts themselves are about: tasks with their ground truth, the rows of other samples, whole data sets. */
function secretsOf({ tasks, output, datasetDirs }: RolloutConfig): string[] {
  return [...(tasks === undefined ? [] : [tasks]), output, `${output}.jsonl`, ...datasetDirs]
}

function lacks(runner: string, flag: string): ProxyError {
  return new ProxyError('config_invalid', `the ${runner} runner needs ${flag}, or choose another --runner`)
}
