/**
 * Every option of every command. Flags, environment variables, file keys, defaults, the help text, the tables of
 * `docs/configuration.md` and the types of the configurations all come from here.
 */
import { OPERATOR_COMMANDS } from './operator-options.ts'
import type { CommandSpec, ConfigOf } from './option.ts'
import { ROLLOUT } from './rollout-options.ts'

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const

const logLevel = {
  flag: 'log-level',
  type: 'enum',
  values: LOG_LEVELS,
  // Python's names, which deployments have in LOG_LEVEL for all their programs.
  synonyms: { warning: 'warn', critical: 'fatal', notset: 'trace', off: 'silent' },
  default: 'info',
  env: ['LOG_LEVEL'],
  group: 'Process',
  help: 'Least severe level that is logged, as JSON lines on stderr',
} as const

const shutdownGraceMs = {
  flag: 'shutdown-grace',
  type: 'duration',
  default: '30s',
  group: 'Process',
  help: 'On SIGTERM or SIGINT, how long the calls that run may take to finish; a second signal ends them at once',
} as const

const engineKind = {
  flag: 'engine-kind',
  type: 'enum',
  values: ['auto', 'vllm', 'sglang', 'openai', 'embedded'],
  default: 'auto',
  group: 'Engines',
  help:
    'What the engines speak: vllm for vLLM and engines with its token-id fields, sglang, openai for any other ' +
    'OpenAI-compatible server, auto to ask each one; without an engine URL auto means the embedded engine',
} as const

const engineApiKey = {
  flag: 'engine-api-key',
  type: 'text',
  secret: true,
  group: 'Engines',
  help: 'Sent to every engine as bearer token; on the command line other users of the machine can read it',
} as const

const engineSessionHeader = {
  flag: 'engine-session-header',
  type: 'text',
  default: 'X-Session-ID',
  group: 'Engines',
  help:
    'Headers that carry the session id with every call, for routers in front of engines that send the calls of one ' +
    'session to one of them: X-SMG-Routing-Key, X-Correlation-ID, X-Dynamo-Session-ID; several with commas, or none',
} as const

const workerKeys = {
  flag: 'worker-key',
  type: 'key',
  secret: true,
  repeatable: true,
  group: 'Keys',
} as const

const tlsCa = {
  flag: 'tls-ca',
  type: 'path',
  help: 'Authorities that are trusted beside those of Node.js, PEM: of a proxy with a certificate of its own',
} as const

const adminKeys = {
  flag: 'admin-key',
  type: 'key',
  secret: true,
  repeatable: true,
  group: 'Keys',
} as const

export const SERVE = {
  name: 'serve',
  summary: 'Run the proxy (the default command)',
  envPrefix: 'LLM_PROXY_',
  options: {
    mode: {
      flag: 'mode',
      type: 'enum',
      values: ['local', 'relay'],
      default: 'local',
      group: 'Server',
      help: 'local: the proxy calls engines over HTTP; relay: workers dial in at /ws/worker and call them',
    },
    host: {
      flag: 'host',
      type: 'text',
      default: '127.0.0.1',
      env: ['PROXY_HOST'],
      group: 'Server',
      help: 'Address to listen on; 0.0.0.0 for all of them',
    },
    port: {
      flag: 'port',
      type: 'port',
      default: '8080',
      env: ['PROXY_PORT'],
      group: 'Server',
      help: 'Port to listen on; 0 for any free one',
    },
    maxBodyBytes: {
      flag: 'max-body-bytes',
      type: 'bytes',
      min: '1KiB',
      max: '512MiB',
      default: '16MiB',
      group: 'Server',
      help: 'Largest request body that is read, images included',
    },
    tlsCert: {
      flag: 'tls-cert',
      type: 'path',
      group: 'Server',
      help: 'Certificate, PEM, for HTTPS and wss; read again when it changes. Needs --tls-key',
    },
    tlsKey: {
      flag: 'tls-key',
      type: 'path',
      group: 'Server',
      help: 'Private key of the certificate, PEM',
    },
    basePath: {
      flag: 'base-path',
      type: 'basePath',
      default: '/',
      group: 'Server',
      help: 'Path that precedes all routes, for an ingress that serves other things too; such as /llm',
    },
    trustedProxies: {
      flag: 'trusted-proxy',
      type: 'network',
      repeatable: true,
      group: 'Server',
      help:
        'Address or CIDR block of a reverse proxy whose X-Forwarded-* headers are believed; may be given several ' +
        'times. Without it nobody is',
    },
    config: {
      flag: 'config',
      type: 'path',
      group: 'Server',
      help: 'JSON file with any of these options, each under its name with _ for -',
    },
    adminKeys: {
      ...adminKeys,
      help:
        'Closes the proxy: every request needs a key, and this one is for trainers and operators (sessions, rewards, ' +
        'admin). Several are all valid; @file reads them from a file, one a line. On the command line other users of ' +
        'the machine can read it',
    },
    workerKeys: {
      ...workerKeys,
      help: 'For workers, who dial /ws/worker; otherwise as --admin-key',
    },
    viewKeys: {
      flag: 'view-key',
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help: 'For people and tools that read everything and change nothing, as the inspector does; otherwise as --admin-key',
    },
    metricsKeys: {
      flag: 'metrics-key',
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help: 'For monitoring, which reads /metrics and the whole of /health; otherwise as --admin-key',
    },
    agentKeySecrets: {
      flag: 'agent-key-secret',
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help:
        "Gives each session's agent a key of its own, which POST /sessions tells. Keys of all the secrets are valid, the " +
        'first one makes new ones; otherwise as --admin-key',
    },
    engineUrls: {
      flag: 'engine-url',
      type: 'url',
      repeatable: true,
      group: 'Engines',
      help: 'Base URL of an engine that local mode calls; may be given several times',
    },
    awaitEngines: {
      flag: 'await-engines',
      type: 'boolean',
      default: 'false',
      group: 'Engines',
      help:
        'Begin without an engine: calls wait until one is registered at POST /admin/workers, and the embedded ' +
        'one never answers',
    },
    engineKind,
    engineApiKey,
    engineSessionHeader,
    model: {
      flag: 'model',
      type: 'text',
      group: 'Engines',
      help: 'Model name that engines are asked for, whatever the agent asks for',
    },
    playbook: {
      flag: 'playbook',
      type: 'path',
      group: 'Engines',
      help: 'JSON file of answers that the embedded engine is made to give',
    },
    healthIntervalMs: {
      flag: 'health-interval',
      type: 'duration',
      min: '100ms',
      default: '5s',
      group: 'Engines',
      help: 'How often each engine is asked whether it serves',
    },
    tokenizer: {
      flag: 'tokenizer',
      type: 'text',
      group: 'Token mode',
      help:
        "Switches token mode on: the proxy renders and tokenizes prompts itself. The model's directory, its " +
        'tokenizer.json, its id on the Hugging Face hub, or the word embedded',
    },
    toolParser: {
      flag: 'tool-parser',
      type: 'text',
      default: 'auto',
      group: 'Token mode',
      help: 'How the model writes reasoning and tool calls, by the names of vLLM; auto goes by its chat template',
    },
    contextLength: {
      flag: 'context-length',
      type: 'integer',
      min: '1',
      group: 'Token mode',
      help: "Tokens of prompt and completion together; without it what the model's config.json says",
    },
    maxConcurrency: {
      flag: 'max-concurrency',
      type: 'integer',
      min: '1',
      default: '1024',
      group: 'Scheduling',
      help: 'Calls that one engine serves at once; a worker of protocol version 2 states its own number',
    },
    queueLimit: {
      flag: 'queue-limit',
      type: 'integer',
      default: '8192',
      group: 'Scheduling',
      help: 'Calls that may wait for a free engine or worker; one more is turned away with 503',
    },
    queueWaitMs: {
      flag: 'queue-wait',
      type: 'duration',
      default: '30s',
      group: 'Scheduling',
      help: 'How long a call waits while no engine or worker is there that could serve it',
    },
    pauseLimitMs: {
      flag: 'pause-limit',
      type: 'duration',
      default: '1h',
      group: 'Scheduling',
      help:
        'How long POST /admin/pause may hold calls back; then they are refused with 503 until POST /admin/resume, ' +
        'for whoever paused may be gone. 0 for without end',
    },
    agentCallLimit: {
      flag: 'agent-call-limit',
      type: 'integer',
      min: '1',
      default: '128',
      group: 'Scheduling',
      help: 'Calls that an agent with a key may have under way at once; one more is turned away with 429',
    },
    agentFields: {
      flag: 'agent-fields',
      type: 'text',
      repeatable: true,
      group: 'Keys',
      help:
        "Field of a call that agents with a key may set besides OpenAI's own and those of sampling; may be given " +
        'several times, * for all. Engines obey some that reach beyond the call',
    },
    agentMedia: {
      flag: 'agent-media',
      type: 'enum',
      values: ['data', 'any'],
      default: 'data',
      group: 'Keys',
      help:
        'Addresses of images, sounds and videos from agents with a key: data, in the body itself; any, which ' +
        'the engine then fetches',
    },
    relayTimeoutMs: {
      flag: 'relay-timeout',
      type: 'duration',
      min: '1ms',
      default: '300s',
      env: ['RELAY_TIMEOUT'],
      group: 'Relay mode',
      help:
        'How long a worker of protocol version 1 may take for a call, and one of version 2 may be silent ' +
        'about it',
    },
    workerGraceMs: {
      flag: 'worker-grace',
      type: 'duration',
      default: '30s',
      group: 'Relay mode',
      help: 'How long the calls of a worker that lost its connection wait for it to come back',
    },
    heartbeatIntervalMs: {
      flag: 'heartbeat-interval',
      type: 'duration',
      min: '100ms',
      default: '10s',
      group: 'Relay mode',
      help: 'How often workers are pinged; one that is silent for three of these is gone',
    },
    db: {
      flag: 'db',
      type: 'path',
      default: './llm-proxy.db',
      group: 'Sessions',
      help: 'Database file; the word memory keeps nothing on disk',
    },
    durability: {
      flag: 'durability',
      type: 'enum',
      values: ['power', 'process'],
      default: 'power',
      group: 'Sessions',
      help: 'What an acknowledged turn survives: power, the machine losing it; process, the proxy dying',
    },
    sessionTtlMs: {
      flag: 'session-ttl',
      type: 'duration',
      max: '3650d',
      default: '0',
      group: 'Sessions',
      help: 'Sessions are deleted this long after their last change; 0 for never',
    },
    stripVolatile: {
      flag: 'strip-volatile',
      type: 'boolean',
      default: 'true',
      group: 'Sessions',
      help:
        'Take out of system prompts what an agent changes with each call and no model needs, such as the ' +
        'accounting line of Claude Code; the turn shows what was taken',
    },
    strictSessions: {
      flag: 'strict-sessions',
      type: 'boolean',
      default: 'false',
      group: 'Sessions',
      help: 'Answer 404 to calls for a session that nobody created, instead of creating it',
    },
    shutdownGraceMs,
    logLevel,
  },
} as const satisfies CommandSpec

export const WORKER = {
  name: 'worker',
  summary: 'Dial a relay-mode proxy and serve its calls with engines that this machine reaches',
  envPrefix: 'LLM_PROXY_',
  options: {
    proxyUrls: {
      flag: 'proxy-url',
      type: 'socketUrl',
      repeatable: true,
      env: ['PROXY_SERVER_URL'],
      group: 'Proxy',
      help: 'Base URL of a proxy in relay mode; may be given several times',
    },
    workerKeys: {
      ...workerKeys,
      group: 'Proxy',
      help:
        'Key that the proxies ask for. Of several the next is tried when one is refused; @file reads them from a file, ' +
        'one a line. On the command line other users of the machine can read it',
    },
    tlsCa: { ...tlsCa, group: 'Proxy' },
    workerId: {
      flag: 'worker-id',
      type: 'text',
      group: 'Proxy',
      help: 'Name of this worker, the same after each restart; without it the host name and process id',
    },
    engineUrls: {
      flag: 'engine-url',
      type: 'url',
      repeatable: true,
      group: 'Engines',
      help: 'Base URL of an engine; may be given several times',
    },
    engineKind,
    engineApiKey,
    engineSessionHeader,
    maxConcurrency: {
      flag: 'max-concurrency',
      type: 'integer',
      min: '1',
      default: '1024',
      group: 'Engines',
      help: 'Calls that one engine serves at once',
    },
    shutdownGraceMs,
    logLevel,
  },
} as const satisfies CommandSpec

export const ENGINE = {
  name: 'engine',
  summary: 'Serve the embedded engine over HTTP with the wire format of vLLM, to test against',
  envPrefix: 'LLM_PROXY_ENGINE_',
  options: {
    host: {
      flag: 'host',
      type: 'text',
      default: '127.0.0.1',
      group: 'Server',
      help: 'Address to listen on; 0.0.0.0 for all of them',
    },
    port: {
      flag: 'port',
      type: 'port',
      default: '8000',
      group: 'Server',
      help: 'Port to listen on; 0 for any free one',
    },
    model: {
      flag: 'model',
      type: 'text',
      group: 'Model',
      help: 'Name under which the model is served',
    },
    weightVersion: {
      flag: 'weight-version',
      type: 'text',
      group: 'Model',
      help: 'Weight version that the engine reports',
    },
    contextLength: {
      flag: 'context-length',
      type: 'integer',
      min: '1',
      group: 'Model',
      help: 'Tokens that prompt and completion may have together',
    },
    playbook: {
      flag: 'playbook',
      type: 'path',
      group: 'Model',
      help: 'JSON file of answers that the engine is made to give',
    },
    latencyMs: {
      flag: 'latency',
      type: 'duration',
      default: '0',
      group: 'Speed',
      help: 'Time to the first token',
    },
    tokensPerSecond: {
      flag: 'tokens-per-second',
      type: 'number',
      default: '0',
      group: 'Speed',
      help: 'Speed of sampling; 0 for as fast as it goes',
    },
    logLevel,
  },
} as const satisfies CommandSpec

const sessionSource = {
  db: {
    flag: 'db',
    type: 'path',
    default: './llm-proxy.db',
    group: 'Source',
    help: 'Database file to read; a proxy may be writing it',
  },
  url: {
    flag: 'url',
    type: 'url',
    flagOnly: true,
    group: 'Source',
    help: 'Base URL of a running proxy to ask instead of a database',
  },
  adminKeys: {
    ...adminKeys,
    group: 'Source',
    help: 'Key that the proxy asks for; @file reads it from a file',
  },
  tlsCa: { ...tlsCa, group: 'Source' },
} as const

const json = {
  flag: 'json',
  type: 'boolean',
  default: 'false',
  flagOnly: true,
  group: 'Output',
  help: 'Print JSON as the HTTP API has it instead of a table',
} as const

export const SESSIONS_LIST = {
  name: 'sessions list',
  summary: 'List sessions, newest first',
  envPrefix: 'LLM_PROXY_',
  options: {
    ...sessionSource,
    status: {
      flag: 'status',
      type: 'enum',
      values: ['active', 'completed', 'aborted'],
      flagOnly: true,
      group: 'Output',
      help: 'Only sessions of this status',
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '1',
      flagOnly: true,
      group: 'Output',
      help: 'At most this many; without it all of them',
    },
    json,
  },
} as const satisfies CommandSpec

export const SESSIONS_SHOW = {
  name: 'sessions show',
  summary: 'Show one session and its turns',
  envPrefix: 'LLM_PROXY_',
  options: { ...sessionSource, json },
} as const satisfies CommandSpec

export const SESSIONS_EXPORT = {
  name: 'sessions export',
  summary: 'Write sessions as JSON lines: training rows, or turns',
  envPrefix: 'LLM_PROXY_',
  options: {
    ...sessionSource,
    format: {
      flag: 'format',
      type: 'enum',
      values: ['trajectories', 'turns'],
      default: 'trajectories',
      flagOnly: true,
      group: 'Output',
      help: 'trajectories: one row per line, ready to train on; turns: one recorded call per line',
    },
    select: {
      flag: 'select',
      type: 'enum',
      values: ['all', 'main', 'longest', 'last'],
      default: 'all',
      flagOnly: true,
      group: 'Output',
      help: 'Which rows of a session: main are those of its main line, without sub-agents',
    },
    sideCalls: {
      flag: 'side-calls',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Output',
      help: "Rows of side calls as well, such as those for an agent's titles",
    },
    finishedOnly: {
      flag: 'finished-only',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Output',
      help: 'No rows of sessions that were aborted or are still active',
    },
    output: {
      flag: 'output',
      type: 'path',
      flagOnly: true,
      group: 'Output',
      help: 'File to write, whole or not at all; without it stdout',
    },
  },
} as const satisfies CommandSpec

export const HEALTH = {
  name: 'health',
  summary: 'Ask a running proxy whether it is well; exit 0 if so, 1 if not (for container health checks)',
  envPrefix: 'LLM_PROXY_',
  options: {
    url: {
      flag: 'url',
      type: 'url',
      flagOnly: true,
      group: 'Proxy',
      help: 'Base URL of the proxy; without it where serve would listen in this same environment',
    },
    tlsCa: { ...tlsCa, group: 'Proxy' },
    timeoutMs: {
      flag: 'timeout',
      type: 'duration',
      min: '1ms',
      default: '5s',
      flagOnly: true,
      group: 'Proxy',
      help: 'How long the answer may take',
    },
  },
} as const satisfies CommandSpec

export const DEMO = {
  name: 'demo',
  summary: 'Show the whole system on this machine: relay mode, a worker, agents, trajectories, rewards',
  envPrefix: 'LLM_PROXY_',
  options: {
    rollouts: {
      flag: 'rollouts',
      type: 'integer',
      min: '1',
      max: '1000',
      default: '8',
      flagOnly: true,
      group: 'Demo',
      help: 'How many rollouts of the calculator agent to run',
    },
    concurrency: {
      flag: 'concurrency',
      type: 'integer',
      min: '1',
      max: '64',
      default: '4',
      flagOnly: true,
      group: 'Demo',
      help: 'How many of them at a time',
    },
    db: {
      flag: 'db',
      type: 'path',
      default: './llm-proxy-demo.db',
      flagOnly: true,
      group: 'Demo',
      help: 'Database file that the sessions are recorded into',
    },
    logLevel: { ...logLevel, default: 'error' },
  },
} as const satisfies CommandSpec

export const DATASET_HARBOR = {
  name: 'dataset harbor',
  summary: "Turn Harbor task directories into a data set with verl's columns, one Parquet file per split",
  envPrefix: 'LLM_PROXY_',
  options: {
    train: {
      flag: 'train',
      type: 'directory',
      flagOnly: true,
      group: 'Tasks',
      help: 'Tasks to train on, for train.parquet: directories with task.toml and instruction.md, at any depth up to 6',
    },
    val: {
      flag: 'val',
      type: 'directory',
      flagOnly: true,
      group: 'Tasks',
      help: 'Tasks to validate with, for val.parquet',
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '1',
      flagOnly: true,
      group: 'Tasks',
      help: 'At most this many of each split, the first by name',
    },
    out: {
      flag: 'out',
      type: 'directory',
      flagOnly: true,
      group: 'Output',
      help: 'Where the files go; one that would not change is left as it is',
    },
    dataSource: {
      flag: 'data-source',
      type: 'text',
      default: 'harbor',
      flagOnly: true,
      group: 'Output',
      help: 'Name of the data set, in the column data_source',
    },
  },
} as const satisfies CommandSpec

export type ServeConfig = ConfigOf<typeof SERVE>
export type WorkerConfig = ConfigOf<typeof WORKER>
export type EngineConfig = ConfigOf<typeof ENGINE>
export type SessionsListConfig = ConfigOf<typeof SESSIONS_LIST>
export type SessionsShowConfig = ConfigOf<typeof SESSIONS_SHOW>
export type SessionsExportConfig = ConfigOf<typeof SESSIONS_EXPORT>
export type DatasetHarborConfig = ConfigOf<typeof DATASET_HARBOR>
export type HealthConfig = ConfigOf<typeof HEALTH>
export type DemoConfig = ConfigOf<typeof DEMO>

export const COMMANDS = [
  SERVE,
  WORKER,
  ENGINE,
  ROLLOUT,
  SESSIONS_LIST,
  SESSIONS_SHOW,
  SESSIONS_EXPORT,
  DATASET_HARBOR,
  HEALTH,
  DEMO,
  ...OPERATOR_COMMANDS,
] as const satisfies readonly CommandSpec[]
