/** Options of the proxy itself. */
import type { CommandSpec, ConfigOf } from '../option.ts'
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
    host: { ...host, env: ['PROXY_HOST'] },
    port: {
      flag: 'port',
      type: 'port',
      default: '8080',
      env: ['PROXY_PORT'],
      group: 'Server',
      help: 'Port to listen on; 0 for any free one',
    },
    healthPort: {
      flag: 'health-port',
      type: 'port',
      group: 'Server',
      help:
        'Second port, plain HTTP without keys, on which a thread of its own answers GET /health and nothing else: at once, ' +
        'however busy the proxy is. For probes',
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
    verifyShare: {
      flag: 'verify-share',
      type: 'number',
      min: '0',
      max: '1',
      default: '0',
      group: 'Drift',
      help:
        'Share of turns whose logprobs an engine is asked for again in the background, when no call waits: 0.01. Counted ' +
        'in /health and in metrics',
    },
    verifyEngineUrl: {
      flag: 'verify-engine-url',
      type: 'url',
      group: 'Drift',
      help: 'Engine to ask about them; without it the one that sampled them, in local mode',
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
    choiceLimit: {
      flag: 'choice-limit',
      type: 'integer',
      min: '1',
      default: '128',
      group: 'Scheduling',
      help: "Answers that one call may ask for (n); more are refused with 400. Each counts as one of its agent's calls",
    },
    heartbeatMs: {
      flag: 'heartbeat',
      type: 'duration',
      default: '0',
      group: 'Server',
      help:
        'Send a space so often while an answer that is not streamed is waited for, so that no tunnel or gateway cuts the ' +
        'connection; the status is a 200 from the first one on. 0: never',
    },
    retryGraceMs: {
      flag: 'retry-grace',
      type: 'duration',
      default: '10s',
      group: 'Scheduling',
      help:
        'How long a call goes on when its agent has lost the connection and has a client that tries again, as the ' +
        'OpenAI and Anthropic SDKs do: the retry joins it. 0 cancels it at once',
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
    node: {
      flag: 'node',
      type: 'text',
      group: 'Sessions',
      help:
        'Which of several equal proxies this one is, such as 2/4: it refuses sessions of the others with 421. ordinal/4 ' +
        "takes the number from the host's name, as a StatefulSet gives it",
    },
    sessionTtlMs: {
      flag: 'session-ttl',
      type: 'duration',
      max: '3650d',
      default: '0',
      group: 'Sessions',
      help: 'Sessions are deleted this long after their last change; 0 for never',
    },
    sessionMemoryBytes: {
      flag: 'session-memory',
      type: 'bytes',
      min: '1MiB',
      default: '512MiB',
      group: 'Sessions',
      help:
        'Memory for what is known of the calls of active sessions, so that the next one costs only what is new in it. ' +
        'Over it the sessions that called longest ago are forgotten, and read from the database when they call again',
    },
    record: {
      flag: 'record',
      type: 'text',
      repeatable: true,
      group: 'Sessions',
      help:
        'What turns are recorded with beyond ids and logprobs, where the engine gives it: sampling_mask, ' +
        'top_logprobs:20, prompt_logprobs, routed_experts, weight_versions; a session may name its own',
    },
    logprobsMode: {
      flag: 'logprobs-mode',
      type: 'text',
      group: 'Sessions',
      help:
        'What the logprobs of the engines are of, for the record of turns whose engine does not tell: ' +
        "raw_logprobs or processed_logprobs for vLLM's --logprobs-mode, or any word of yours",
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

export type ServeConfig = ConfigOf<typeof SERVE>
