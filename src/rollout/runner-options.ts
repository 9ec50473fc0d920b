/** Options of agent runners. */
import { groupOptions, type OptionTable } from '../proxy/config/option.ts'

/** Options of the command, and of a proxy that runs rollouts itself. */
export const RUNNER_OPTIONS = {
  ...groupOptions('Rollouts', {
    concurrency: {
      flag: 'concurrency',
      type: 'integer',
      min: '1',
      default: '8',
      flagOnly: true,
      help: 'Maximum number of concurrent rollouts',
    },
  }),
  ...groupOptions('Agent', {
    runner: {
      flag: 'runner',
      type: 'enum',
      values: ['command', 'harbor', 'harbor-server', 'http', 'agentcore'],
      env: ['REMOTE_AGENT_RUNNER'],
      help:
        'How to run agents: a command on this machine, trials of Harbor, a server that runs Harbor tasks, a webhook, or ' +
        'AWS Bedrock AgentCore; ' +
        'default: agentcore with an --agentcore-arn, else command',
    },
    command: {
      flag: 'command',
      type: 'text',
      env: ['REMOTE_AGENT_COMMAND'],
      help: 'The agent, as a shell command; session and task are in its environment',
    },
    verifier: {
      flag: 'verifier',
      type: 'text',
      env: ['REMOTE_AGENT_VERIFIER'],
      help: "Shell command that scores the agent's work, by its exit code or by the content of $REWARD_FILE",
    },
    webhookUrl: {
      flag: 'webhook-url',
      type: 'url',
      env: ['REMOTE_AGENT_WEBHOOK_URL'],
      help: 'URL that receives a POST for each task',
    },
    timeLimitMs: {
      flag: 'time-limit',
      type: 'duration',
      min: '1ms',
      default: '30m',
      env: ['REMOTE_AGENT_TIMEOUT'],
      help: "Time limit of a command, of a webhook's agent, or of an AgentCore session",
    },
    workDir: {
      flag: 'work-dir',
      type: 'path',
      flagOnly: true,
      help: "Keep each command's working directory and output here; default: temporary",
    },
    sandbox: {
      flag: 'sandbox',
      type: 'enum',
      values: ['auto', 'bwrap', 'none'],
      default: 'auto',
      env: ['REMOTE_AGENT_SANDBOX'],
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
      help:
        'Directory that programs in the sandbox may read although it is private, such as one in the home ' +
        'directory; may be given several times',
    },
    hiddenColumns: {
      flag: 'hide-column',
      hidden: true,
      type: 'text',
      repeatable: true,
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
      help: "Environment variable for the verifier, such as a judge's key; may be given several times",
    },
  }),
  ...groupOptions('AgentCore', {
    agentcoreArn: {
      flag: 'agentcore-arn',
      type: 'text',
      help: 'ARN of the AgentCore runtime with the agent',
    },
    agentcoreQualifier: {
      flag: 'agentcore-qualifier',
      hidden: true,
      type: 'text',
      default: 'DEFAULT',
      help: "Name of the runtime's endpoint",
    },
    agentcoreResults: {
      flag: 'results',
      type: 'enum',
      values: ['s3', 'sqs', 'envelope'],
      help:
        'How results are returned: s3; sqs, S3 with a queue that announces results; envelope, from the session ' +
        'itself. Default: depends on whether a queue, a bucket or neither is given',
    },
    agentcoreBucket: {
      flag: 'agentcore-bucket',
      type: 'text',
      help: "S3 bucket for the agents' results",
    },
    agentcoreQueue: {
      flag: 'agentcore-queue',
      type: 'url',
      help: 'URL of the SQS queue in which S3 announces results',
    },
    agentcoreExperiment: {
      flag: 'agentcore-experiment',
      hidden: true,
      type: 'text',
      help: "First part of the results' keys, unique to this run; default: a random one",
    },
    agentcoreTps: {
      flag: 'agentcore-tps',
      hidden: true,
      type: 'number',
      min: '0.1',
      default: '25',
      help: 'API calls per second of this process: starts, stops and polls together',
    },
    agentcoreSessions: {
      flag: 'agentcore-sessions',
      hidden: true,
      type: 'integer',
      min: '1',
      default: '500',
      help: 'Maximum number of concurrent sessions, within the quota of the account',
    },
    agentcoreLedger: {
      flag: 'agentcore-ledger',
      hidden: true,
      type: 'path',
      default: './agentcore-sessions',
      help:
        'Folder that lists sessions until they are stopped; the next run stops those that a crash left ' +
        'running',
    },
  }),
} as const satisfies OptionTable
