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
      type: 'path',
      default: './llm-proxy.db',
      group: 'View',
      help: 'Database file to show; a proxy may be writing it',
    },
    host: {
      flag: 'host',
      type: 'text',
      default: '127.0.0.1',
      flagOnly: true,
      group: 'View',
      help: 'Address to listen on; any other than one of this machine alone needs --view-key',
    },
    port: {
      flag: 'port',
      type: 'port',
      default: '8090',
      flagOnly: true,
      group: 'View',
      help: 'Port to listen on; 0 for any free one',
    },
    basePath: { ...SERVE.options.basePath, group: 'View' },
    viewKeys: {
      ...SERVE.options.viewKeys,
      group: 'View',
      help: 'Key that the page asks for; @file reads it from a file',
    },
    tokenizer: {
      flag: 'tokenizer',
      type: 'text',
      group: 'View',
      help:
        "Tells what tokens read like: the model's directory, its tokenizer.json, or its id on the Hugging Face hub; " +
        'without it ids are shown of all models but the embedded one',
    },
    logLevel: { ...logLevel, default: 'warn' },
  },
} as const satisfies CommandSpec

export type ViewConfig = ConfigOf<typeof VIEW>
