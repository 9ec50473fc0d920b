/** Options of the commands that read recorded sessions, from a database or from a running proxy. */
import { addFlagGroup, type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { SERVE } from './serve.ts'
import { db, json, proxyKeys, select, tlsCa } from './shared.ts'

export const sessionSource = groupOptions('Source', {
  db: {
    ...db,
    help: 'Database to read; a proxy may be writing it; a file or postgres://…',
  },
  url: {
    flag: 'url',
    type: 'url',
    flagOnly: true,
    help: 'Base URL of a running proxy to read from, instead of a database',
  },
  adminKeys: proxyKeys,
  tlsCa,
})

const tableJson = { ...json, help: 'Print the JSON of the HTTP API instead of a table' } as const

const run = {
  flag: 'run',
  type: 'text',
  help: 'Only sessions of this run, whose ids begin with runs/RUN/',
} as const

export const SESSIONS_LIST = {
  name: 'sessions list',
  summary: 'List sessions, newest first',
  options: {
    ...sessionSource,
    ...addFlagGroup('Output', {
      status: {
        flag: 'status',
        type: 'enum',
        values: ['active', 'completed', 'aborted'],
        help: 'Only sessions of this status',
      },
      run,
      sort: {
        flag: 'sort',
        type: 'enum',
        values: ['created', 'changed', 'reward', 'turns', 'tokens'],
        default: 'created',
        help: 'Order of sessions: the newest first, the last changed, or those with the highest value',
      },
      sinceMs: {
        flag: 'since',
        type: 'duration',
        help: 'Only sessions that changed within this time, such as 2h',
      },
      label: {
        flag: 'label',
        type: 'text',
        help: 'Only sessions with this label, or with a turn that has it',
      },
      metadata: {
        flag: 'metadata',
        type: 'text',
        repeatable: true,
        help: 'Only sessions with this metadata, as key=value; may be given several times',
      },
      limit: {
        flag: 'limit',
        type: 'integer',
        min: '1',
        help: 'Maximum number of sessions; default: all',
      },
      json: tableJson,
    }),
  },
} as const satisfies CommandSpec

export const SESSIONS_GREP = {
  name: 'sessions grep',
  summary: 'Search the text of turns, the latest first',
  options: {
    ...sessionSource,
    ...addFlagGroup('Output', {
      run,
      perSession: {
        flag: 'per-session',
        type: 'integer',
        min: '1',
        max: '500',
        default: '3',
        help: 'Maximum number of turns per session',
      },
      limit: {
        flag: 'limit',
        type: 'integer',
        min: '1',
        default: '100',
        help: 'Maximum number of turns',
      },
      json: { ...json, help: 'Print one JSON object per line, as the HTTP API returns it' },
    }),
  },
} as const satisfies CommandSpec

export const SESSIONS_IMPORT = {
  name: 'sessions import',
  summary: 'Import the sessions of another database into this one, which no proxy may be writing',
  options: {
    ...groupOptions('Target', {
      db: { ...db, help: 'Database to write; a file or postgres://…' },
      durability: SERVE.options.durability,
    }),
  },
} as const satisfies CommandSpec

export const SESSIONS_SHOW = {
  name: 'sessions show',
  summary: 'Show one session: its turns and their text',
  options: {
    ...sessionSource,
    ...addFlagGroup('Output', {
      summary: {
        flag: 'summary',
        type: 'boolean',
        default: 'false',
        help: 'Only the table of turns, without text',
      },
      full: {
        flag: 'full',
        type: 'boolean',
        default: 'false',
        help: 'Complete texts, however long, and tools with their descriptions',
      },
      json: tableJson,
    }),
  },
} as const satisfies CommandSpec

export const SESSIONS_EXPORT = {
  name: 'sessions export',
  summary: 'Write sessions as JSON lines (training rows, turns, foreign formats), or as an HTML page',
  options: {
    ...sessionSource,
    ...addFlagGroup('Output', {
      run,
      format: {
        flag: 'format',
        type: 'enum',
        values: ['trajectories', 'turns', 'sft', 'atif', 'training_trace', 'html'],
        default: 'trajectories',
        help:
          'trajectories: one training row per line; turns: one turn per line; sft: the same rows as ' +
          "input_ids and labels; atif: a session per line in Harbor's format; training_trace: a session per " +
          "line as OpenEnv's TrainingTrace; html: the given sessions, in one file for any browser",
      },
      select,
      sideCalls: {
        flag: 'side-calls',
        type: 'boolean',
        default: 'false',
        help: "Also rows of side calls, such as those for an agent's titles",
      },
      rejected: {
        flag: 'rejected',
        type: 'boolean',
        default: 'false',
        help: 'Also rows of compactions that the agent rejected',
      },
      finishedOnly: {
        flag: 'finished-only',
        type: 'boolean',
        default: 'false',
        help: 'No rows of sessions that are aborted or still active',
      },
      details: {
        flag: 'details',
        type: 'text',
        repeatable: true,
        help:
          'Recorded details that rows show: sampling_mask, routed_experts and others of docs/details.md, or ' +
          'all; may be given several times',
      },
      tokenizer: {
        flag: 'tokenizer',
        type: 'text',
        help:
          "For html from a database: tokenizer for the text of tokens, as the model's directory, its tokenizer.json or " +
          'its id on the Hugging Face hub',
      },
      output: {
        flag: 'output',
        type: 'path',
        help:
          'File to write atomically; default: stdout. A name that ends in .parquet or .arrow selects that format (the ' +
          'latter needs the package apache-arrow)',
      },
    }),
  },
} as const satisfies CommandSpec

export type SessionsImportConfig = CommandConfig<typeof SESSIONS_IMPORT>
export type SessionsGrepConfig = CommandConfig<typeof SESSIONS_GREP>
export type SessionsListConfig = CommandConfig<typeof SESSIONS_LIST>
export type SessionsShowConfig = CommandConfig<typeof SESSIONS_SHOW>
export type SessionsExportConfig = CommandConfig<typeof SESSIONS_EXPORT>
