/**
 * Options of rollouts: those of RemoteAgentLoop, which the library exports, of the command `rollout`, and of a proxy
 * that runs rollouts.
 */
import {
  addFlagGroup,
  type CommandConfig,
  type CommandSpec,
  groupOptions,
  type OptionTable,
  withAll,
} from '../proxy/config/option.ts'
import { adminKeys, select, tlsCa } from '../proxy/config/options/shared.ts'
import { RUNNER_OPTIONS } from './runner-options.ts'

/** Settings that a RemoteAgentLoop reads from the environment; each is also an option of its constructor. */
export const REMOTE_AGENT = {
  name: 'remote agent loop',
  summary: 'Options of a RemoteAgentLoop',
  options: {
    ...groupOptions('Proxy', {
      proxyUrl: {
        flag: 'proxy-url',
        type: 'socketUrl',
        env: ['PROXY_SERVER_URL'],
        help: 'Base URL of the proxy',
      },
      adminKeys: {
        ...adminKeys,
        help: 'Admin key of the proxy (the first one, if there are several); @file reads it from a file',
      },
      tlsCa,
      agentHost: {
        flag: 'agent-host',
        type: 'text',
        env: ['LLM_PROXY_IP'],
        help: 'Host at which agents reach the proxy, with a port if it differs too; default: that of the proxy URL',
      },
    }),
    ...groupOptions('Agent', {
      modelName: {
        flag: 'model-name',
        type: 'text',
        env: ['REMOTE_MODEL_NAME'],
        help: 'Model name for agents',
      },
      agentName: {
        flag: 'agent-name',
        type: 'text',
        env: ['REMOTE_AGENT_NAME'],
        help: 'Name of the agent that Harbor runs',
      },
      agentImportPath: {
        flag: 'agent-import-path',
        hidden: true,
        type: 'text',
        env: ['REMOTE_AGENT_IMPORT_PATH'],
        help: 'Import path of the agent for Harbor, such as my_agents.swe:SweAgent',
      },
      agentKwargs: {
        flag: 'agent-kwargs',
        hidden: true,
        type: 'json',
        default: '{}',
        env: ['REMOTE_AGENT_KWARGS'],
        help: 'Parameters for the agent, passed unchanged',
      },
      environmentOverrides: {
        flag: 'environment-overrides',
        type: 'json',
        default: '{}',
        secret: true,
        env: ['REMOTE_AGENT_ENVIRONMENT_OVERRIDES'],
        help: 'Additional environment variables for agents',
      },
      environmentKwargs: {
        flag: 'environment-kwargs',
        hidden: true,
        type: 'json',
        default: '{}',
        secret: true,
        env: ['REMOTE_AGENT_ENVIRONMENT_KWARGS'],
        help: "Parameters of Harbor's environment, passed unchanged",
      },
      trustAgent: {
        flag: 'trust-agent',
        hidden: true,
        type: 'boolean',
        default: 'false',
        help: 'Trust metadata from agents with a key, such as the role and the retry count of a request',
      },
    }),
    ...groupOptions('Tasks', {
      datasetDirs: {
        flag: 'dataset-dir',
        type: 'path',
        repeatable: true,
        env: ['HARBOR_DATASET_DIRS'],
        help:
          'Directory with one task directory per instance id, for rows without local_task_path; may be given ' +
          'several times',
      },
      taskPathTemplate: {
        flag: 'task-path-template',
        hidden: true,
        type: 'text',
        env: ['REMOTE_AGENT_TASK_PATH_TEMPLATE'],
        help: 'Path of a task directory that no --dataset-dir contains, with {instance_id} as placeholder',
      },
    }),
    ...groupOptions('Retries', {
      maxRetries: {
        flag: 'max-retries',
        type: 'integer',
        default: '3',
        env: ['REMOTE_AGENT_MAX_RETRIES'],
        help: 'How often a failed agent is retried',
      },
      retryBaseDelayMs: {
        flag: 'retry-base-delay',
        hidden: true,
        type: 'duration',
        default: '2s',
        env: ['REMOTE_AGENT_RETRY_BASE_DELAY'],
        help: 'Wait before the first retry; it doubles with each one',
      },
      onTimeLimit: {
        flag: 'on-time-limit',
        type: 'enum',
        values: ['retry', 'keep'],
        default: 'retry',
        help: 'Handling of an agent that exceeds its time limit: retry, as a failure; keep, train on its recorded turns',
      },
    }),
    ...groupOptions('Harbor', {
      harborCommand: {
        flag: 'harbor-command',
        hidden: true,
        type: 'text',
        default: 'harbor',
        env: ['HARBOR_COMMAND'],
        help: 'Shell command of Harbor, such as uvx --python 3.12 harbor',
      },
      harborEnvironment: {
        flag: 'harbor-environment',
        type: 'text',
        default: 'docker',
        env: ['HARBOR_ENVIRONMENT'],
        help: "Where Harbor's trials run: docker, modal, daytona, e2b … or module.path:ClassName",
      },
      harborUrl: {
        flag: 'harbor-url',
        type: 'url',
        env: ['HARBOR_SERVER_URL'],
        help: 'Base URL of the Harbor server',
      },
      harborTimeoutMs: {
        flag: 'harbor-timeout',
        hidden: true,
        type: 'duration',
        min: '1ms',
        default: '30m',
        env: ['HARBOR_TIMEOUT'],
        help: 'Time limit of a trial, or of a run on the Harbor server',
      },
    }),
    ...groupOptions('Rows', {
      record: {
        flag: 'record',
        type: 'text',
        repeatable: true,
        help:
          'Token data that sessions record and rows contain beyond ids and logprobs: sampling_mask, top_logprobs:20, ' +
          'prompt_logprobs, routed_experts, weight_versions',
      },
      select,
      promptLength: {
        flag: 'prompt-length',
        hidden: true,
        type: 'integer',
        min: '1',
        help: 'Keep this many tokens at the end of a prompt; default: all',
      },
      responseLength: {
        flag: 'response-length',
        hidden: true,
        type: 'integer',
        min: '1',
        help: 'Keep this many tokens at the start of a response; default: all',
      },
      maskStaleTokens: {
        flag: 'mask-stale-tokens',
        hidden: true,
        type: 'boolean',
        default: 'false',
        help: 'Mask tokens that were sampled by older weights than the newest weights in their row',
      },
    }),
  },
} as const satisfies CommandSpec

export type RemoteAgentConfig = CommandConfig<typeof REMOTE_AGENT>

export const ROLLOUT = {
  name: 'rollout',
  summary: 'Run agents on a file of tasks and write training rows',
  options: {
    ...addFlagGroup('Rollouts', {
      tasks: {
        flag: 'tasks',
        type: 'path',
        help: 'File of tasks: one JSON object per line, or a data set in Parquet (.parquet)',
      },
      listen: {
        flag: 'listen',
        type: 'text',
        help: 'Serve POST /rollouts for trainers at this HOST:PORT, instead of running a file of tasks',
      },
      output: {
        flag: 'output',
        type: 'path',
        default: './rollouts.jsonl',
        help:
          'File for the rows: JSON lines, Parquet (.parquet) or Arrow IPC (.arrow). If it exists, only missing ' +
          'samples are run',
      },
      retryFailed: {
        flag: 'retry-failed',
        type: 'boolean',
        default: 'false',
        help: 'Remove samples whose attempts all failed from an existing output, and run them again',
      },
      samplesPerTask: {
        flag: 'n',
        type: 'integer',
        min: '1',
        default: '1',
        help: 'Samples of each task',
      },
      samplingParams: {
        flag: 'sampling-params',
        type: 'json',
        default: '{}',
        help: 'Sampling parameters that override those of the agents',
      },
    }),
    ...RUNNER_OPTIONS,
    ...REMOTE_AGENT.options,
  },
} as const satisfies CommandSpec

export type RolloutConfig = CommandConfig<typeof ROLLOUT>

const {
  proxyUrl: _url,
  adminKeys: _keys,
  tlsCa: _ca,
  record: _record,
  ...LOOP_OPTIONS
} = REMOTE_AGENT.options

/** The options of in-process rollouts, except those that the proxy already has. */
export const OWN_ROLLOUTS = { ...RUNNER_OPTIONS, ...LOOP_OPTIONS }

export type RunnerConfig = CommandConfig<CommandSpec<typeof OWN_ROLLOUTS>>

const { runner, ...ownOptions } = OWN_ROLLOUTS

/** The rollout options of the command `serve`. */
export const SERVER_ROLLOUTS = {
  ...groupOptions('Server', {
    rolloutServer: {
      flag: 'rollout-server',
      type: 'url',
      help: 'Base URL of an llm-proxy rollout --listen to which the proxy forwards /rollouts',
    },
    runner: {
      ...runner,
      // Ignores the environment variable, which may select a runner for rollouts on another machine.
      flagOnly: true,
      help:
        'Serve /rollouts by running agents on this machine: command, harbor, http or agentcore; --help-all lists its options, ' +
        'which are those of llm-proxy rollout',
    },
  }),
  ...hideOptions(ownOptions),
} as const satisfies OptionTable

/**
 * Hides options from `--help`, because few users need them, and removes their environment variables: trainers set these
 * variables, possibly for rollouts on another machine.
 */
function hideOptions<T extends OptionTable>(options: T): T {
  return withAll(options, { hidden: true, group: 'Rollouts', env: [] }) as T
}

/** The configuration of a proxy's rollouts. A proxy without rollouts may omit it. */
export type ServerRolloutsConfig =
  | CommandConfig<CommandSpec<typeof SERVER_ROLLOUTS>>
  | { runner?: undefined; rolloutServer?: undefined }
