/** Options of the commands that control and monitor a running proxy. */
import {
  addFlagGroup,
  type CommandConfig,
  type CommandSpec,
  groupOptions,
  type OptionTable,
} from '../option.ts'
import { json, proxyKeys, proxyUrl, tlsCa } from './shared.ts'

/** The options with address and keys of the proxy. */
const proxy = groupOptions('Proxy', {
  url: proxyUrl,
  adminKeys: proxyKeys,
  tlsCa,
})

/** Defines a command that connects to a proxy. @param options options besides those of the proxy's address */
function defineCommand<const T extends OptionTable>(name: string, summary: string, options: T) {
  return { name, summary, options: { ...proxy, ...options } } satisfies CommandSpec
}

/** A database to change instead of a running proxy. */
const db = {
  flag: 'db',
  type: 'path',
  flagOnly: true,
  group: 'Proxy',
  help: 'Database to change instead, which no proxy may have open; a file or postgres://…',
} as const

export const SESSIONS_TAIL = defineCommand(
  'sessions tail',
  'Show the sessions that changed last, and follow new events',
  addFlagGroup('Output', {
    follow: {
      flag: 'follow',
      short: 'f',
      type: 'boolean',
      default: 'false',
      help: 'Continue with one line per event, until the proxy stops or Ctrl+C',
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '0',
      max: '1000',
      default: '10',
      help: 'Number of sessions to show first',
    },
    json: { ...json, help: 'Print the JSON lines of the HTTP API instead of text' },
  }),
)

export const SESSIONS_COMPLETE = defineCommand(
  'sessions complete',
  'End sessions as completed: their rows are ready to train on',
  { db, json },
)

export const SESSIONS_REWARD = defineCommand('sessions reward', 'Set the reward of a session', {
  db,
  ...addFlagGroup('Reward', {
    components: {
      flag: 'components',
      type: 'json',
      help: 'Parts of the reward by name, as {"tests": 1}',
    },
    turns: {
      flag: 'turns',
      type: 'json',
      help: 'Rewards of single turns by index or id, as {"0": 0.5}',
    },
  }),
  json,
})

export const SESSIONS_ABORT = defineCommand(
  'sessions abort',
  'End sessions as aborted: their requests in flight are cancelled',
  { db, json },
)

export const SESSIONS_DELETE = defineCommand(
  'sessions delete',
  'Remove sessions and their turns; their requests in flight are cancelled',
  { db, json },
)

export const WORKERS_LIST = defineCommand('workers list', 'List engines or workers', { json })

export const PAUSE = defineCommand(
  'pause',
  'Queue new requests and wait for running requests to finish; exit 1 on timeout',
  {
    ...addFlagGroup('Pause', {
      drainTimeoutMs: {
        flag: 'drain-timeout',
        type: 'duration',
        min: '0s',
        max: '1h',
        default: '60s',
        help: 'How long to wait for requests in flight; the pause stays in effect in any case',
      },
    }),
    json,
  },
)

export const RESUME = defineCommand('resume', 'Serve requests again after a pause', { json })

export const WEIGHTS_SET = defineCommand(
  'weights set',
  'Set the weight version, for engines that do not report one',
  { json },
)

export const CHAT = defineCommand(
  'chat',
  'Send one request like an agent, and show the response and the recorded turn',
  {
    ...addFlagGroup('Request', {
      session: {
        flag: 'session',
        type: 'text',
        help: 'Session for the request; default: a new one, which is deleted afterwards',
      },
      model: {
        flag: 'model',
        type: 'text',
        help: 'Model to request; default: the first that the proxy lists',
      },
      maxTokens: {
        flag: 'max-tokens',
        type: 'integer',
        min: '1',
        default: '64',
        help: 'Maximum length of the completion, in tokens',
      },
    }),
    json: { ...json, help: 'Print the turn as JSON of the HTTP API instead of text' },
  },
)

export type SessionsTailConfig = CommandConfig<typeof SESSIONS_TAIL>
export type SessionsRewardConfig = CommandConfig<typeof SESSIONS_REWARD>
/** The configuration of `sessions complete`, `abort` and `delete`. */
export type SessionsChangeConfig = CommandConfig<typeof SESSIONS_DELETE>
export type PauseConfig = CommandConfig<typeof PAUSE>
export type ChatConfig = CommandConfig<typeof CHAT>
/** The configuration of a command that adds no options. */
export type OperatorConfig = CommandConfig<typeof RESUME>

export const OPERATOR_COMMANDS = [
  SESSIONS_TAIL,
  SESSIONS_COMPLETE,
  SESSIONS_REWARD,
  SESSIONS_ABORT,
  SESSIONS_DELETE,
  WORKERS_LIST,
  PAUSE,
  RESUME,
  WEIGHTS_SET,
  CHAT,
] as const satisfies readonly CommandSpec[]
