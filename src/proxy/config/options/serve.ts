/** Options of the proxy itself. */
import type { CommandSpec, ConfigOf, OptionTable } from '../option.ts'
import { OWN_ROLLOUTS } from './rollout.ts'
import {
  adminKeys,
  engineApiKey,
  engineKind,
  engineSessionHeader,
  host,
  logLevel,
  shutdownGraceMs,
  workerKeys,
} from './shared.ts'

/**
 * Few need them: `--help` leaves them out. Without the names that trainers have for them, whose values on this machine may be
 * about rollouts that run elsewhere.
 */
function ownRollouts<T extends OptionTable>(options: T): T {
  const more = { hidden: true, group: 'Rollouts', env: [] }
  const entries = Object.entries(options).map(([key, option]) => [key, { ...option, ...more }])
  return Object.fromEntries(entries) as object as T
}

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
      help: 'local: the proxy calls engines over HTTP; relay: workers connect at /ws/worker and call the engines',
    },
    host: {
      ...host,
      env: ['PROXY_HOST'],
      help: `${host.help}. Beyond this machine it needs keys, or --open`,
    },
    open: {
      flag: 'open',
      hidden: true,
      type: 'boolean',
      default: 'false',
      group: 'Server',
      help: 'Listen beyond this machine without keys: whoever reaches it may read, change and delete everything',
    },
    port: {
      flag: 'port',
      type: 'port',
      default: '8080',
      env: ['PROXY_PORT'],
      group: 'Server',
      help: 'Port to listen on; 0: any free port',
    },
    healthPort: {
      flag: 'health-port',
      hidden: true,
      type: 'port',
      group: 'Server',
      help:
        'Second port for probes: only GET /health, in plain HTTP without keys, answered by a thread ' +
        'of its own',
    },
    maxBodyBytes: {
      flag: 'max-body-bytes',
      hidden: true,
      type: 'bytes',
      min: '1KiB',
      max: '512MiB',
      default: '16MiB',
      group: 'Server',
      help: 'Largest request body, images included',
    },
    tlsCert: {
      flag: 'tls-cert',
      type: 'path',
      group: 'Server',
      help: 'Certificate for HTTPS and wss, PEM; read again when it changes. Needs --tls-key',
    },
    tlsKey: {
      flag: 'tls-key',
      type: 'path',
      group: 'Server',
      help: 'Private key of the certificate, PEM',
    },
    basePath: {
      flag: 'base-path',
      hidden: true,
      type: 'basePath',
      default: '/',
      group: 'Server',
      help: 'Path before all routes, such as /llm, for an ingress that serves other things too',
    },
    trustedProxies: {
      flag: 'trusted-proxy',
      hidden: true,
      type: 'network',
      repeatable: true,
      group: 'Server',
      help:
        'Address or CIDR block of a reverse proxy whose X-Forwarded-* headers are trusted; may be given ' +
        'several times. Default: none',
    },
    config: {
      flag: 'config',
      type: 'path',
      group: 'Server',
      help: 'JSON file with any of these options; a name there has _ instead of -',
    },
    adminKeys: {
      ...adminKeys,
      help:
        'Key for trainers and operators (sessions, rewards, admin). With it, every request needs a key. ' +
        'Several keys are all valid; @file reads them from a file, one per line. On the command line, other ' +
        'users of the machine can read it',
    },
    workerKeys: {
      ...workerKeys,
      help: 'Key for workers, for /ws/worker; given like --admin-key',
    },
    viewKeys: {
      flag: 'view-key',
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help: 'Key that reads everything and changes nothing, for people and the inspector; given like --admin-key',
    },
    metricsKeys: {
      flag: 'metrics-key',
      hidden: true,
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help: 'Key for monitoring: reads /metrics and all of /health; given like --admin-key',
    },
    agentKeySecrets: {
      flag: 'agent-key-secret',
      type: 'key',
      secret: true,
      repeatable: true,
      group: 'Keys',
      help:
        "Secret that makes a key for each session's agent, which POST /sessions returns. Keys of all secrets " +
        'are valid, the first secret makes new ones; given like --admin-key',
    },
    rolloutServer: {
      flag: 'rollout-server',
      type: 'url',
      group: 'Server',
      help: 'Base URL of llm-proxy rollout --listen, which answers /rollouts of the proxy',
    },
    ...ownRollouts(OWN_ROLLOUTS),
    runner: {
      ...OWN_ROLLOUTS.runner,
      // So may be the runner that the environment names.
      flagOnly: true,
      group: 'Server',
      help:
        'Answer /rollouts by running agents here: command, harbor, http or agentcore; --help-all has its options, ' +
        'which are those of llm-proxy rollout',
    },
    engineUrls: {
      flag: 'engine-url',
      type: 'url',
      repeatable: true,
      group: 'Engines',
      help: 'Base URL of an engine for local mode; may be given several times',
    },
    awaitEngines: {
      flag: 'await-engines',
      hidden: true,
      type: 'boolean',
      default: 'false',
      group: 'Engines',
      help: 'Start without an engine: calls wait until one is registered with POST /admin/workers',
    },
    engineKind,
    engineApiKey,
    engineSessionHeader: { ...engineSessionHeader, hidden: true },
    model: {
      flag: 'model',
      type: 'text',
      group: 'Engines',
      help: 'Model name that engines are asked for, whatever name the agent sends',
    },
    playbook: {
      flag: 'playbook',
      hidden: true,
      type: 'path',
      group: 'Engines',
      help: 'JSON file of answers for the embedded engine',
    },
    healthIntervalMs: {
      flag: 'health-interval',
      hidden: true,
      type: 'duration',
      min: '100ms',
      default: '5s',
      group: 'Engines',
      help: 'Time between health checks of an engine',
    },
    tokenizer: {
      flag: 'tokenizer',
      type: 'text',
      group: 'Token mode',
      help:
        "Switches token mode on: the proxy renders and tokenizes prompts itself. The model's directory, its " +
        'tokenizer.json, its id on the Hugging Face hub, or embedded',
    },
    toolParser: {
      flag: 'tool-parser',
      type: 'text',
      default: 'auto',
      group: 'Token mode',
      help: "How the model writes reasoning and tool calls, by vLLM's names; auto takes the model's response template, or reads it from the chat template",
    },
    promptFormat: {
      flag: 'prompt-format',
      hidden: true,
      type: 'enum',
      values: ['auto', 'template', 'harmony'],
      default: 'auto',
      group: 'Token mode',
      help: "What writes prompts: the model's template; harmony, OpenAI's rules; auto, harmony for gpt-oss alone",
    },
    tokenizerBackend: {
      flag: 'tokenizer-backend',
      hidden: true,
      type: 'enum',
      values: ['auto', 'huggingface'],
      default: 'auto',
      group: 'Token mode',
      help:
        "What tokenizes: huggingface, Hugging Face's library; auto, fastokens where it was built, as long as it gives " +
        'the same ids',
    },
    contextLength: {
      flag: 'context-length',
      type: 'integer',
      min: '1',
      group: 'Token mode',
      help: "Tokens of prompt and completion together; default: from the model's config.json",
    },
    maxConcurrency: {
      flag: 'max-concurrency',
      type: 'integer',
      min: '1',
      default: '1024',
      group: 'Scheduling',
      help: 'Calls that one engine serves at once; a worker of protocol version 2 reports its own number',
    },
    verifyShare: {
      flag: 'verify-share',
      type: 'number',
      min: '0',
      max: '1',
      default: '0',
      group: 'Drift',
      help: 'Share of turns, such as 0.01, whose logprobs an idle engine computes again in the background',
    },
    verifyEngineUrl: {
      flag: 'verify-engine-url',
      hidden: true,
      type: 'url',
      group: 'Drift',
      help: 'Engine that computes them; default: the one that sampled them, in local mode',
    },
    queueLimit: {
      flag: 'queue-limit',
      hidden: true,
      type: 'integer',
      default: '8192',
      group: 'Scheduling',
      help: 'Calls that may wait for a free engine or worker; more are refused with 503',
    },
    queueWaitMs: {
      flag: 'queue-wait',
      hidden: true,
      type: 'duration',
      default: '30s',
      group: 'Scheduling',
      help: 'How long a call waits if no engine or worker can serve it',
    },
    pauseLimitMs: {
      flag: 'pause-limit',
      hidden: true,
      type: 'duration',
      default: '1h',
      group: 'Scheduling',
      help:
        'How long POST /admin/pause may hold calls back; then they are refused with 503 until POST ' +
        '/admin/resume. 0: no limit',
    },
    agentCallLimit: {
      flag: 'agent-call-limit',
      hidden: true,
      type: 'integer',
      min: '1',
      default: '128',
      group: 'Scheduling',
      help: 'Calls that an agent with a key may run at once; more are refused with 429',
    },
    choiceLimit: {
      flag: 'choice-limit',
      hidden: true,
      type: 'integer',
      min: '1',
      default: '128',
      group: 'Scheduling',
      help:
        'Answers that one call may ask for (n); more are refused with 400. Each counts as one call of its ' +
        'agent',
    },
    answerKeepAliveMs: {
      flag: 'answer-keep-alive',
      formerly: 'heartbeat',
      hidden: true,
      type: 'duration',
      default: '0',
      group: 'Server',
      help:
        'Interval at which a space is sent while a non-streamed answer is not ready; with the first ' +
        'one the status is 200. 0: never',
    },
    retryGraceMs: {
      flag: 'retry-grace',
      hidden: true,
      type: 'duration',
      default: '10s',
      group: 'Scheduling',
      help:
        'How long a call continues after its agent lost the connection, so that a retry by its SDK ' +
        'joins it. 0: cancelled at once',
    },
    agentFields: {
      flag: 'agent-fields',
      hidden: true,
      type: 'text',
      repeatable: true,
      group: 'Keys',
      help:
        "Field that agents with a key may set besides OpenAI's and sampling fields; may be given " +
        'several times, * for all',
    },
    agentMedia: {
      flag: 'agent-media',
      hidden: true,
      type: 'enum',
      values: ['data', 'any'],
      default: 'data',
      group: 'Keys',
      help:
        'Images, sounds and videos that agents with a key may send: data, in the body itself; any, ' +
        'also addresses, which the engine then fetches',
    },
    relayTimeoutMs: {
      flag: 'relay-timeout',
      type: 'duration',
      min: '1ms',
      default: '300s',
      env: ['RELAY_TIMEOUT'],
      group: 'Relay mode',
      help:
        'Longest time for a call at a worker of protocol version 1, and longest silence about a call at one ' +
        'of version 2',
    },
    workerGraceMs: {
      flag: 'worker-grace',
      hidden: true,
      type: 'duration',
      default: '30s',
      group: 'Relay mode',
      help: 'How long the calls of a disconnected worker wait for it to come back',
    },
    heartbeatIntervalMs: {
      flag: 'heartbeat-interval',
      hidden: true,
      type: 'duration',
      min: '100ms',
      default: '10s',
      group: 'Relay mode',
      help: 'Time between pings to workers; a worker that is silent for three of them counts as lost',
    },
    db: {
      flag: 'db',
      env: ['DATABASE_URL'],
      type: 'path',
      default: './llm-proxy.db',
      group: 'Sessions',
      help: 'Database: a file, or postgres://…; memory: one that ends with the process',
    },
    durability: {
      flag: 'durability',
      hidden: true,
      type: 'enum',
      values: ['power', 'process'],
      default: 'power',
      group: 'Sessions',
      help: 'What a recorded turn survives: power, a power loss of the machine; process, the death of the proxy',
    },
    searchIndex: {
      flag: 'search-index',
      hidden: true,
      type: 'boolean',
      default: 'true',
      group: 'Sessions',
      help: 'Keep an index of what was said and sampled, in the background; without it a search looks at every turn',
    },
    nodeUrl: {
      flag: 'node-url',
      hidden: true,
      type: 'url',
      group: 'Sessions',
      help: 'Where other proxies on the same PostgreSQL database reach this one. Default: its own address',
    },
    sessionTtlMs: {
      flag: 'session-ttl',
      type: 'duration',
      max: '3650d',
      default: '0',
      group: 'Sessions',
      help: 'Sessions are deleted this long after their last change; 0: never',
    },
    sessionLimits: {
      flag: 'session-limit',
      hidden: true,
      type: 'text',
      repeatable: true,
      group: 'Sessions',
      help:
        'Budget of each session that names none: turns=50, sampled_tokens=, prompt_tokens= or seconds=; may be given ' +
        'several times. With at_limit=error agents get an error there, else an ordinary end',
    },
    sessionMemoryBytes: {
      flag: 'session-memory',
      hidden: true,
      type: 'bytes',
      min: '1MiB',
      default: '512MiB',
      group: 'Sessions',
      help:
        'Memory for the calls of active sessions; above it, those that called longest ago are read ' +
        'from the database at their next call',
    },
    record: {
      flag: 'record',
      type: 'text',
      repeatable: true,
      group: 'Sessions',
      help:
        'Details to record beyond ids and logprobs, if the engine gives them: sampling_mask, top_logprobs:20, ' +
        'prompt_logprobs, routed_experts, weight_versions; a session may choose its own',
    },
    editedCalls: {
      flag: 'edited-calls',
      hidden: true,
      type: 'enum',
      values: ['auto', 'keep', 'branch'],
      default: 'auto',
      group: 'Sessions',
      help:
        'Tool calls that an agent sends back changed: `keep` takes them for what was sampled, ' +
        '`branch` begins a new row, `auto` does so only where most was cut away',
    },
    turnMessages: {
      flag: 'turn-messages',
      hidden: true,
      type: 'enum',
      values: ['all', 'new'],
      default: 'all',
      group: 'Sessions',
      help:
        'What GET /sessions/{id} shows of the messages of a turn, if the query does not say: all, or those that are ' +
        'new in it, as the loop of alibaba/verl-recipe takes them',
    },
    logprobsMode: {
      flag: 'logprobs-mode',
      hidden: true,
      type: 'text',
      group: 'Sessions',
      help:
        "Which distribution the engines' logprobs belong to, if they do not report it: raw_logprobs " +
        "or processed_logprobs (vLLM's --logprobs-mode), or any other word",
    },
    stripVolatile: {
      flag: 'strip-volatile',
      hidden: true,
      type: 'boolean',
      default: 'true',
      group: 'Sessions',
      help:
        "Remove from system prompts what an agent changes with each call, such as Claude Code's " +
        'billing header; the turn shows what was removed',
    },
    strictSessions: {
      flag: 'strict-sessions',
      type: 'boolean',
      default: 'false',
      group: 'Sessions',
      help: 'Answer 404 to calls of a session that was not created, instead of creating it',
    },
    shutdownGraceMs,
    logLevel,
  },
} as const satisfies CommandSpec

export type ServeConfig = ConfigOf<typeof SERVE>
