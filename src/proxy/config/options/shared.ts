/** Options that several commands share. */

const LOG_LEVELS = ['fatal', 'error', 'warn', 'audit', 'info', 'debug', 'trace', 'silent'] as const

export const logLevel = {
  flag: 'log-level',
  type: 'enum',
  values: LOG_LEVELS,
  // Names of Python's log levels, since deployments set LOG_LEVEL once for all their programs.
  synonyms: { warning: 'warn', critical: 'fatal', notset: 'trace', off: 'silent' },
  default: 'info',
  env: ['LOG_LEVEL'],
  group: 'Process',
  help: 'Lowest level that is logged, on stderr',
} as const

export const logFormat = {
  flag: 'log-format',
  type: 'enum',
  values: ['auto', 'json', 'text'],
  default: 'auto',
  hidden: true,
  group: 'Process',
  help: 'Format of log lines; auto: text if stderr is a terminal, otherwise JSON',
} as const

export const host = {
  flag: 'host',
  type: 'text',
  default: '127.0.0.1',
  help: 'Address to listen on; 0.0.0.0 for all',
} as const

export const port = {
  flag: 'port',
  type: 'port',
  help: 'Port to listen on; 0: any free port',
} as const

export const db = {
  flag: 'db',
  env: ['DATABASE_URL'],
  type: 'path',
  default: './llm-proxy.db',
} as const

/** The address of the proxy, for a command that connects to a running one. */
export const proxyUrl = {
  flag: 'url',
  type: 'url',
  flagOnly: true,
  help: 'Base URL of the proxy; default: the address at which serve listens in this environment',
} as const

export const shutdownGraceMs = {
  flag: 'shutdown-grace',
  type: 'duration',
  default: '30s',
  group: 'Process',
  help: 'How long requests in flight may take to finish after SIGTERM or SIGINT; a second signal cancels them',
} as const

export const engineKind = {
  flag: 'engine-kind',
  type: 'enum',
  values: ['auto', 'vllm', 'sglang', 'openai', 'embedded'],
  default: 'auto',
  help:
    'API of the engines: vllm for vLLM and engines with its token-id fields, sglang, openai for any other ' +
    'OpenAI-compatible server, auto to detect it. Without an engine URL, auto means the embedded engine',
} as const

export const engineApiKey = {
  flag: 'engine-api-key',
  type: 'text',
  secret: true,
  help: 'Key for every engine, sent as bearer token; on the command line, other users of the machine can read it',
} as const

export const engineSessionHeader = {
  flag: 'engine-session-header',
  type: 'text',
  default: 'X-Session-ID',
  help:
    'Headers with the id of the session or sub-agent in every engine request, for routers: ' +
    'X-SMG-Routing-Key, X-Correlation-ID, X-Dynamo-Session-ID; several with commas, or none',
} as const

export const maxConcurrency = {
  flag: 'max-concurrency',
  type: 'integer',
  min: '1',
  default: '1024',
} as const

/** The properties that the options of all keys have in common. */
export const keyOption = {
  type: 'key',
  secret: true,
  repeatable: true,
} as const

export const workerKeys = { ...keyOption, flag: 'worker-key' } as const

export const tlsCa = {
  flag: 'tls-ca',
  type: 'path',
  help:
    'Certificate authorities to trust besides those of Node.js, PEM, for a proxy with a private or ' +
    'self-signed certificate',
} as const

export const adminKeys = { ...keyOption, flag: 'admin-key' } as const

/** The key of the proxy, for a command that connects to a running one. */
export const proxyKeys = { ...adminKeys, help: 'Key of the proxy; @file reads it from a file' } as const

/** The rows to select from a session that branched. */
export const select = {
  flag: 'select',
  type: 'enum',
  values: ['all', 'main', 'longest', 'last'],
  default: 'all',
  help:
    'Rows of a session that branched: all, those of the main role (no sub-agents), the longest, or the ' +
    'last',
} as const

export const json = {
  flag: 'json',
  type: 'boolean',
  default: 'false',
  flagOnly: true,
  group: 'Output',
  help: 'Print the JSON of the HTTP API instead of text',
} as const
