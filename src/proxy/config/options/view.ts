/** Options of the command that shows a database without a proxy. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { SERVE } from './serve.ts'
import { logLevel } from './shared.ts'

export const VIEW = {
  name: 'view',
  summary: 'Show a database in the browser, without a proxy',
  envPrefix: 'LLM_PROXY_',
  options: {
    db: {
      flag: 'db',
      env: ['DATABASE_URL'],
      type: 'path',
      default: './llm-proxy.db',
      group: 'View',
      help: 'Database to show; a proxy may be writing it; a file or postgres://…',
    },
    host: {
      flag: 'host',
      type: 'text',
      default: '127.0.0.1',
      flagOnly: true,
      group: 'View',
      help: 'Address to listen on; needs --view-key if other machines can reach it',
    },
    port: {
      flag: 'port',
      type: 'port',
      default: '8090',
      flagOnly: true,
      group: 'View',
      help: 'Port to listen on; 0: any free port',
    },
    basePath: { ...SERVE.options.basePath, group: 'View' },
    viewKeys: {
      ...SERVE.options.viewKeys,
      group: 'View',
      help: 'Key for the page; @file reads it from a file',
    },
    tokenizer: {
      flag: 'tokenizer',
      type: 'text',
      group: 'View',
      help:
        "Tokenizer for the text of tokens: the model's directory, its tokenizer.json, or its id on the " +
        "Hugging Face hub. Without it, only the embedded model's tokens have text, others show their ids",
    },
    logLevel: { ...logLevel, default: 'warn' },
  },
} as const satisfies CommandSpec

export type ViewConfig = ConfigOf<typeof VIEW>
