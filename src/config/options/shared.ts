/** Options that several commands have. */

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const

export const logLevel = {
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

export const host = {
  flag: 'host',
  type: 'text',
  default: '127.0.0.1',
  group: 'Server',
  help: 'Address to listen on; 0.0.0.0 for all of them',
} as const

/** Of a command that asks a running proxy. */
export const proxyUrl = {
  flag: 'url',
  type: 'url',
  flagOnly: true,
  group: 'Proxy',
  help: 'Base URL of the proxy; without it where serve would listen in this same environment',
} as const

export const shutdownGraceMs = {
  flag: 'shutdown-grace',
  type: 'duration',
  default: '30s',
  group: 'Process',
  help: 'On SIGTERM or SIGINT, how long the calls that run may take to finish; a second signal ends them at once',
} as const

export const engineKind = {
  flag: 'engine-kind',
  type: 'enum',
  values: ['auto', 'vllm', 'sglang', 'openai', 'embedded'],
  default: 'auto',
  group: 'Engines',
  help:
    'What the engines speak: vllm for vLLM and engines with its token-id fields, sglang, openai for any other ' +
    'OpenAI-compatible server, auto to ask each one; without an engine URL auto means the embedded engine',
} as const

export const engineApiKey = {
  flag: 'engine-api-key',
  type: 'text',
  secret: true,
  group: 'Engines',
  help: 'Sent to every engine as bearer token; on the command line other users of the machine can read it',
} as const

export const engineSessionHeader = {
  flag: 'engine-session-header',
  type: 'text',
  default: 'X-Session-ID',
  group: 'Engines',
  help:
    'Headers that carry the session id with every call, for routers in front of engines that send the calls of one ' +
    'session to one of them: X-SMG-Routing-Key, X-Correlation-ID, X-Dynamo-Session-ID; several with commas, or none',
} as const

export const workerKeys = {
  flag: 'worker-key',
  type: 'key',
  secret: true,
  repeatable: true,
  group: 'Keys',
} as const

export const tlsCa = {
  flag: 'tls-ca',
  type: 'path',
  help: 'Authorities that are trusted beside those of Node.js, PEM: of a proxy with a certificate of its own',
} as const

export const adminKeys = {
  flag: 'admin-key',
  type: 'key',
  secret: true,
  repeatable: true,
  group: 'Keys',
} as const

export const json = {
  flag: 'json',
  type: 'boolean',
  default: 'false',
  flagOnly: true,
  group: 'Output',
  help: 'Print JSON as the HTTP API has it instead of text',
} as const
