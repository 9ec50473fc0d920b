/** Options of the commands that steer and watch a running proxy. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { adminKeys, json, proxyUrl, tlsCa } from './shared.ts'

/** Which proxy, and how it is asked. */
const proxy = {
  url: proxyUrl,
  adminKeys: {
    ...adminKeys,
    group: 'Proxy',
    help: 'Key of the proxy; @file reads it from a file',
  },
  tlsCa: { ...tlsCa, group: 'Proxy' },
} as const

const envPrefix = 'LLM_PROXY_'

export const SESSIONS_TAIL = {
  name: 'sessions tail',
  summary: 'Show the sessions that changed last, and follow new events',
  envPrefix,
  options: {
    ...proxy,
    follow: {
      flag: 'follow',
      short: 'f',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Output',
      help: 'Continue with one line per event, until the proxy stops or Ctrl+C',
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '0',
      max: '1000',
      default: '10',
      flagOnly: true,
      group: 'Output',
      help: 'How many sessions to show first',
    },
    json: { ...json, help: 'Print the JSON lines of the HTTP API instead of text' },
  },
} as const satisfies CommandSpec

export const SESSIONS_ABORT = {
  name: 'sessions abort',
  summary: 'End sessions as aborted: their calls are cancelled',
  envPrefix,
  options: { ...proxy, json },
} as const satisfies CommandSpec

export const SESSIONS_DELETE = {
  name: 'sessions delete',
  summary: 'Remove sessions and their turns; their calls are cancelled',
  envPrefix,
  options: { ...proxy, json },
} as const satisfies CommandSpec

export const WORKERS_LIST = {
  name: 'workers list',
  summary: 'List engines or workers',
  envPrefix,
  options: { ...proxy, json },
} as const satisfies CommandSpec

export const PAUSE = {
  name: 'pause',
  summary: 'Hold new calls back and wait until running ones have ended; exit 1 if some still run',
  envPrefix,
  options: {
    ...proxy,
    drainTimeoutMs: {
      flag: 'drain-timeout',
      type: 'duration',
      min: '0s',
      max: '1h',
      default: '60s',
      flagOnly: true,
      group: 'Pause',
      help: 'How long to wait for running calls; the pause holds in any case',
    },
    json,
  },
} as const satisfies CommandSpec

export const RESUME = {
  name: 'resume',
  summary: 'Serve calls again after a pause',
  envPrefix,
  options: { ...proxy, json },
} as const satisfies CommandSpec

export const WEIGHTS_SET = {
  name: 'weights set',
  summary: 'Set the weight version, for engines that do not report one',
  envPrefix,
  options: { ...proxy, json },
} as const satisfies CommandSpec

export const CHAT = {
  name: 'chat',
  summary: 'Make one call as an agent would, and show the answer and how it was recorded',
  envPrefix,
  options: {
    ...proxy,
    session: {
      flag: 'session',
      type: 'text',
      flagOnly: true,
      group: 'Call',
      help: 'Session for the call; default: a new one, which is deleted afterwards',
    },
    model: {
      flag: 'model',
      type: 'text',
      flagOnly: true,
      group: 'Call',
      help: 'Model to ask for; default: the first that the proxy lists',
    },
    maxTokens: {
      flag: 'max-tokens',
      type: 'integer',
      min: '1',
      default: '64',
      flagOnly: true,
      group: 'Call',
      help: 'Longest answer, in tokens',
    },
    json: { ...json, help: 'Print the turn as JSON of the HTTP API instead of text' },
  },
} as const satisfies CommandSpec

export type SessionsTailConfig = ConfigOf<typeof SESSIONS_TAIL>
export type SessionsAbortConfig = ConfigOf<typeof SESSIONS_ABORT>
export type SessionsDeleteConfig = ConfigOf<typeof SESSIONS_DELETE>
export type WorkersListConfig = ConfigOf<typeof WORKERS_LIST>
export type PauseConfig = ConfigOf<typeof PAUSE>
export type ResumeConfig = ConfigOf<typeof RESUME>
export type WeightsSetConfig = ConfigOf<typeof WEIGHTS_SET>
export type ChatConfig = ConfigOf<typeof CHAT>

export const OPERATOR_COMMANDS = [
  SESSIONS_TAIL,
  SESSIONS_ABORT,
  SESSIONS_DELETE,
  WORKERS_LIST,
  PAUSE,
  RESUME,
  WEIGHTS_SET,
  CHAT,
] as const satisfies readonly CommandSpec[]
