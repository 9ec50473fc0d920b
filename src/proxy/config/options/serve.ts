/** Options of the proxy itself. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { drift, engines, relayMode, scheduling, tokenMode } from './serve-engines.ts'
import { sessions } from './serve-sessions.ts'
import {
  adminKeys,
  host,
  keyOption,
  logFormat,
  logLevel,
  port,
  shutdownGraceMs,
  workerKeys,
} from './shared.ts'

const server = groupOptions('Server', {
  mode: {
    flag: 'mode',
    type: 'enum',
    values: ['local', 'relay'],
    default: 'local',
    help: 'local: the proxy connects to engines over HTTP; relay: workers connect at /ws/worker and use their engines',
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
    help: 'Listen beyond this machine without keys: anyone who can reach it may read, change and delete everything',
  },
  port: {
    ...port,
    default: '8080',
    env: ['PROXY_PORT'],
  },
  healthPort: {
    flag: 'health-port',
    hidden: true,
    type: 'port',
    help: 'Second port for probes: only GET /health and /health/live, in plain HTTP without keys, served by a separate thread',
  },
  maxBodyBytes: {
    flag: 'max-body-bytes',
    hidden: true,
    type: 'bytes',
    min: '1KiB',
    max: '512MiB',
    default: '16MiB',
    help: 'Largest request body, images included',
  },
  tlsCert: {
    flag: 'tls-cert',
    type: 'path',
    help: 'Certificate for HTTPS and wss, PEM; read again when it changes. Needs --tls-key',
  },
  tlsKey: {
    flag: 'tls-key',
    type: 'path',
    help: 'Private key of the certificate, PEM',
  },
  basePath: {
    flag: 'base-path',
    hidden: true,
    type: 'basePath',
    default: '/',
    help: 'Path prefix of all routes, such as /llm, for an ingress that other services share',
  },
  trustedProxies: {
    flag: 'trusted-proxy',
    hidden: true,
    type: 'network',
    repeatable: true,
    help:
      'Address or CIDR block of a reverse proxy whose X-Forwarded-* headers are trusted; may be given ' +
      'several times. Default: none',
  },
  config: {
    flag: 'config',
    type: 'path',
    help: 'JSON file with any of these options; names there have _ instead of -',
  },
  answerKeepAliveMs: {
    flag: 'answer-keep-alive',
    formerly: 'heartbeat',
    hidden: true,
    type: 'duration',
    default: '0',
    help:
      'Interval at which a space is sent while a non-streamed response is not ready; the first ' +
      'space is preceded by the status 200. 0: never',
  },
})

const keys = groupOptions('Keys', {
  adminKeys: {
    ...adminKeys,
    help:
      'Key for trainers and operators (sessions, rewards, admin). With it, every request needs a key. ' +
      'Each of several keys is valid; @file reads them from a file, one per line. On the command line, other ' +
      'users of the machine can read it',
  },
  workerKeys: {
    ...workerKeys,
    help: 'Key for workers, for /ws/worker; given like --admin-key',
  },
  viewKeys: {
    flag: 'view-key',
    ...keyOption,
    help: 'Key that reads everything and changes nothing, for people and the inspector; given like --admin-key',
  },
  metricsKeys: {
    flag: 'metrics-key',
    hidden: true,
    ...keyOption,
    help: 'Key for monitoring: reads /metrics and all of /health; given like --admin-key',
  },
  agentKeySecrets: {
    flag: 'agent-key-secret',
    ...keyOption,
    help:
      "Secret that makes a key for each session's agent, which POST /sessions returns. Keys of all secrets " +
      'are valid, the first secret makes new ones; given like --admin-key',
  },
  agentFields: {
    flag: 'agent-fields',
    hidden: true,
    type: 'text',
    repeatable: true,
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
    help:
      'Images, audio and videos that agents with a key may send: data, in the body itself; any, ' +
      'also URLs, which the engine fetches',
  },
})

export const SERVE = {
  name: 'serve',
  summary: 'Run the proxy (the default command)',
  options: {
    ...server,
    ...keys,
    ...engines,
    ...tokenMode,
    ...scheduling,
    ...drift,
    ...relayMode,
    ...sessions,
    shutdownGraceMs,
    logLevel,
    logFormat,
    logRequests: {
      flag: 'log-requests',
      hidden: true,
      type: 'boolean',
      default: 'false',
      group: 'Process',
      help: 'Log one line per turn at level info instead of debug',
    },
  },
} as const satisfies CommandSpec

export type ServeConfig = CommandConfig<typeof SERVE>
