/** Options of rollouts: those of a RemoteAgentLoop, which a library user has as well, and those of the command. */
import type { CommandSpec, ConfigOf, OptionTable } from '../option.ts'
import { adminKeys, tlsCa } from './shared.ts'

/** What a RemoteAgentLoop reads from the environment; each of these is an option of its constructor too. */
export const REMOTE_AGENT = {
  name: 'remote agent loop',
  summary: 'Options of a RemoteAgentLoop',
  envPrefix: 'LLM_PROXY_',
  options: {
    proxyUrl: {
      flag: 'proxy-url',
      type: 'socketUrl',
      env: ['PROXY_SERVER_URL'],
      group: 'Proxy',
      help: 'Base URL of the proxy',
    },
    adminKeys: {
      ...adminKeys,
      group: 'Proxy',
      help: 'Admin key of the proxy (of several, the first); @file reads it from a file',
    },
    tlsCa: { ...tlsCa, group: 'Proxy' },
    agentHost: {
      flag: 'agent-host',
      type: 'text',
      env: ['LLM_PROXY_IP'],
      group: 'Proxy',
      help:
        'Address at which agents reach the proxy, with a port if that differs too; default: from the proxy ' +
        'URL',
    },
    modelName: {
      flag: 'model-name',
      type: 'text',
      env: ['REMOTE_MODEL_NAME'],
      group: 'Agent',
      help: 'Model name that agents get',
    },
    agentName: {
      flag: 'agent-name',
      type: 'text',
      env: ['REMOTE_AGENT_NAME'],
      group: 'Agent',
      help: 'Name of the agent that Harbor runs',
    },
    agentImportPath: {
      flag: 'agent-import-path',
      hidden: true,
      type: 'text',
      env: ['REMOTE_AGENT_IMPORT_PATH'],
      group: 'Agent',
      help: 'Where Harbor imports the agent from, such as my_agents.swe:SweAgent',
    },
    agentKwargs: {
      flag: 'agent-kwargs',
      hidden: true,
      type: 'json',
      default: '{}',
      env: ['REMOTE_AGENT_KWARGS'],
      group: 'Agent',
      help: 'Parameters for the agent, passed on unchanged',
    },
    environmentOverrides: {
      flag: 'environment-overrides',
      type: 'json',
      default: '{}',
      secret: true,
      env: ['REMOTE_AGENT_ENVIRONMENT_OVERRIDES'],
      group: 'Agent',
      help: "Environment variables for agents, besides the session's",
    },
    environmentKwargs: {
      flag: 'environment-kwargs',
      hidden: true,
      type: 'json',
      default: '{}',
      secret: true,
      env: ['REMOTE_AGENT_ENVIRONMENT_KWARGS'],
      group: 'Agent',
      help: "Parameters of Harbor's environment, passed on unchanged",
    },
    trustAgent: {
      flag: 'trust-agent',
      hidden: true,
      type: 'boolean',
      default: 'false',
      group: 'Agent',
      help: 'Believe agents with a key when they say that a call is a retry, or what it is for',
    },
    datasetDirs: {
      flag: 'dataset-dir',
      type: 'path',
      repeatable: true,
      env: ['HARBOR_DATASET_DIRS'],
      group: 'Tasks',
      help:
        'Directory with one task directory per instance id, for rows without local_task_path; may be given ' +
        'several times',
    },
    taskPathTemplate: {
      flag: 'task-path-template',
      hidden: true,
      type: 'text',
      env: ['REMOTE_AGENT_TASK_PATH_TEMPLATE'],
      group: 'Tasks',
      help: 'Path of a task directory that is in none of these, with {instance_id} in it',
    },
    maxRetries: {
      flag: 'max-retries',
      type: 'integer',
      default: '3',
      env: ['REMOTE_AGENT_MAX_RETRIES'],
      group: 'Retries',
      help: 'How often a failed agent is run again',
    },
    retryBaseDelayMs: {
      flag: 'retry-base-delay',
      hidden: true,
      type: 'duration',
      default: '2s',
      env: ['REMOTE_AGENT_RETRY_BASE_DELAY'],
      group: 'Retries',
      help: 'Wait before the first retry; it doubles with each one',
    },
    onTimeLimit: {
      flag: 'on-time-limit',
      type: 'enum',
      values: ['retry', 'keep'],
      default: 'retry',
      group: 'Retries',
      help: 'An agent that runs out of time: retry, it has failed; keep, what it recorded is trained on',
    },
    harborCommand: {
      flag: 'harbor-command',
      hidden: true,
      type: 'text',
      default: 'harbor',
      env: ['HARBOR_COMMAND'],
      group: 'Harbor',
      help: 'The program of Harbor, for sh; such as uvx --python 3.12 harbor',
    },
    harborEnvironment: {
      flag: 'harbor-environment',
      type: 'text',
      default: 'docker',
      env: ['HARBOR_ENVIRONMENT'],
      group: 'Harbor',
      help: "Where Harbor's trials run: docker, modal, daytona, e2b … or module.path:ClassName",
    },
    harborUrl: {
      flag: 'harbor-url',
      type: 'url',
      env: ['HARBOR_SERVER_URL'],
      group: 'Harbor',
      help: 'Base URL of the Harbor server',
    },
    harborTimeoutMs: {
      flag: 'harbor-timeout',
      hidden: true,
      type: 'duration',
      min: '1ms',
      default: '30m',
      env: ['HARBOR_TIMEOUT'],
      group: 'Harbor',
      help: 'How long a trial, or a run on the Harbor server, may take',
    },
    record: {
      flag: 'record',
      type: 'text',
      repeatable: true,
      group: 'Rows',
      help:
        'Details that sessions record beyond ids and logprobs, and rows show: sampling_mask, top_logprobs:20, ' +
        'prompt_logprobs, routed_experts, weight_versions',
    },
    select: {
      flag: 'select',
      type: 'enum',
      values: ['all', 'main', 'longest', 'last'],
      default: 'all',
      group: 'Rows',
      help:
        'Rows of a session that branched: all, those of the main line (no sub-agents), the longest, or the ' +
        'last',
    },
    promptLength: {
      flag: 'prompt-length',
      hidden: true,
      type: 'integer',
      min: '1',
      group: 'Rows',
      help: 'Keep this many tokens at the end of a prompt; default: all',
    },
    responseLength: {
      flag: 'response-length',
      hidden: true,
      type: 'integer',
      min: '1',
      group: 'Rows',
      help: 'Keep this many tokens at the start of a response; default: all',
    },
  },
} as const satisfies CommandSpec

export type RemoteAgentConfig = ConfigOf<typeof REMOTE_AGENT>

/** What runs agents, and how many: of the command, and of a proxy that runs rollouts itself. */
const RUNNER_OPTIONS = {
  concurrency: {
    flag: 'concurrency',
    type: 'integer',
    min: '1',
    default: '8',
    flagOnly: true,
    group: 'Rollouts',
    help: 'Rollouts at a time',
  },
  runner: {
    flag: 'runner',
    type: 'enum',
    values: ['command', 'harbor', 'harbor-server', 'http', 'agentcore'],
    env: ['REMOTE_AGENT_RUNNER'],
    group: 'Agent',
    help:
      'What runs agents: a command on this machine, trials of Harbor, a server that runs Harbor tasks, a webhook, or ' +
      'AWS Bedrock AgentCore; ' +
      'default: agentcore with an --agentcore-arn, else command',
  },
  command: {
    flag: 'command',
    type: 'text',
    env: ['REMOTE_AGENT_COMMAND'],
    group: 'Agent',
    help: 'The agent, as a line for sh; session and task are in its environment',
  },
  verifier: {
    flag: 'verifier',
    type: 'text',
    env: ['REMOTE_AGENT_VERIFIER'],
    group: 'Agent',
    help: "A line for sh that judges the agent's work, by its exit code or by what it writes to $REWARD_FILE",
  },
  webhookUrl: {
    flag: 'webhook-url',
    type: 'url',
    env: ['REMOTE_AGENT_WEBHOOK_URL'],
    group: 'Agent',
    help: 'Gets a POST for each task',
  },
  timeLimitMs: {
    flag: 'time-limit',
    type: 'duration',
    min: '1ms',
    default: '30m',
    env: ['REMOTE_AGENT_TIMEOUT'],
    group: 'Agent',
    help: "Time limit of a command, of a webhook's agent, or of an AgentCore session",
  },
  workDir: {
    flag: 'work-dir',
    type: 'path',
    flagOnly: true,
    group: 'Agent',
    help: "Keep each command's working directory and output here; default: temporary",
  },
  sandbox: {
    flag: 'sandbox',
    type: 'enum',
    values: ['auto', 'bwrap', 'none'],
    default: 'auto',
    env: ['REMOTE_AGENT_SANDBOX'],
    group: 'Agent',
    help:
      'Sandbox for commands and their verifiers: bwrap, with bubblewrap; auto, the same if it works here; ' +
      'none, only for trusted agents',
  },
  sandboxPaths: {
    flag: 'sandbox-path',
    hidden: true,
    type: 'path',
    repeatable: true,
    env: ['REMOTE_AGENT_SANDBOX_PATHS'],
    group: 'Agent',
    help:
      'Directory that programs in the sandbox may read, though it is in the home or another private ' +
      'place; may be given several times',
  },
  hiddenColumns: {
    flag: 'hide-column',
    hidden: true,
    type: 'text',
    repeatable: true,
    group: 'Agent',
    help:
      'Column of the row that only the verifier sees, may be given several times; default: reward_model, ' +
      'extra_info, answer, solution, ground_truth, patch, test_patch',
  },
  verifierEnv: {
    flag: 'verifier-env',
    hidden: true,
    type: 'text',
    repeatable: true,
    env: ['REMOTE_AGENT_VERIFIER_ENV'],
    group: 'Agent',
    help: "Environment variable that the verifier gets, such as a judge's key; may be given several times",
  },
  agentcoreArn: {
    flag: 'agentcore-arn',
    type: 'text',
    group: 'AgentCore',
    help: 'ARN of the AgentCore runtime with the agent',
  },
  agentcoreQualifier: {
    flag: 'agentcore-qualifier',
    hidden: true,
    type: 'text',
    default: 'DEFAULT',
    group: 'AgentCore',
    help: "Name of the runtime's endpoint",
  },
  agentcoreResults: {
    flag: 'results',
    type: 'enum',
    values: ['s3', 'sqs', 'envelope'],
    group: 'AgentCore',
    help:
      'How results come back: s3; sqs, S3 with a queue that announces results; envelope, from the session ' +
      'itself. Default: by what is given, a queue, a bucket or neither',
  },
  agentcoreBucket: {
    flag: 'agentcore-bucket',
    type: 'text',
    group: 'AgentCore',
    help: "S3 bucket for the agents' results",
  },
  agentcoreQueue: {
    flag: 'agentcore-queue',
    type: 'url',
    group: 'AgentCore',
    help: 'URL of the SQS queue in which S3 announces results',
  },
  agentcoreExperiment: {
    flag: 'agentcore-experiment',
    hidden: true,
    type: 'text',
    group: 'AgentCore',
    help: "First part of the results' keys, for this run alone; default: a new one",
  },
  agentcoreTps: {
    flag: 'agentcore-tps',
    hidden: true,
    type: 'number',
    min: '0.1',
    default: '25',
    group: 'AgentCore',
    help: 'Calls per second of this process: starts, stops and polls together',
  },
  agentcoreSessions: {
    flag: 'agentcore-sessions',
    hidden: true,
    type: 'integer',
    min: '1',
    default: '500',
    group: 'AgentCore',
    help: 'Sessions at a time, within the quota of the account',
  },
  agentcoreLedger: {
    flag: 'agentcore-ledger',
    hidden: true,
    type: 'path',
    default: './agentcore-sessions',
    group: 'AgentCore',
    help:
      'Folder that lists sessions until they are stopped; the next run stops those that a crash left ' +
      'running',
  },
} as const satisfies OptionTable

export const ROLLOUT = {
  name: 'rollout',
  summary: 'Run agents on a file of tasks and write training rows',
  envPrefix: 'LLM_PROXY_',
  options: {
    tasks: {
      flag: 'tasks',
      type: 'path',
      flagOnly: true,
      group: 'Rollouts',
      help: 'File of tasks: one JSON object per line, or a data set in Parquet (.parquet)',
    },
    listen: {
      flag: 'listen',
      type: 'text',
      flagOnly: true,
      group: 'Rollouts',
      help: 'Instead of a file of tasks: serve POST /rollouts at this HOST:PORT, for trainers',
    },
    output: {
      flag: 'output',
      type: 'path',
      default: './rollouts.jsonl',
      flagOnly: true,
      group: 'Rollouts',
      help:
        'File for the rows: JSON lines, Parquet (.parquet) or Arrow IPC (.arrow). If it exists, only missing ' +
        'samples are run',
    },
    retryFailed: {
      flag: 'retry-failed',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Rollouts',
      help: 'Remove samples whose tries all failed from an existing output, and run them again',
    },
    samplesPerTask: {
      flag: 'n',
      type: 'integer',
      min: '1',
      default: '1',
      flagOnly: true,
      group: 'Rollouts',
      help: 'Samples of each task',
    },
    samplingParams: {
      flag: 'sampling-params',
      type: 'json',
      default: '{}',
      flagOnly: true,
      group: 'Rollouts',
      help: 'Sampling parameters that override those of the agents',
    },
    ...RUNNER_OPTIONS,
    ...REMOTE_AGENT.options,
  },
} as const satisfies CommandSpec

export type RolloutConfig = ConfigOf<typeof ROLLOUT>

const {
  proxyUrl: _url,
  adminKeys: _keys,
  tlsCa: _ca,
  record: _record,
  ...LOOP_OPTIONS
} = REMOTE_AGENT.options

/** Of a proxy that runs rollouts itself, but for what it is told for its own sake. */
export const OWN_ROLLOUTS = { ...RUNNER_OPTIONS, ...LOOP_OPTIONS }

export type RunnerConfig = ConfigOf<CommandSpec<typeof OWN_ROLLOUTS>>
