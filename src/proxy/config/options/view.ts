/** Options of the command that serves a database without a proxy. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { SERVE } from './serve.ts'
import { db, host, logFormat, logLevel, port } from './shared.ts'

export const VIEW = {
  name: 'view',
  summary: 'Show a database in the browser, without a proxy',
  options: {
    ...groupOptions('View', {
      db: {
        ...db,
        help: 'Database to show; a proxy may be writing it; a file or postgres://…',
      },
      host: {
        ...host,
        flagOnly: true,
        help: 'Address to listen on; needs --view-key if other machines can reach it',
      },
      port: {
        ...port,
        // The port differs from those of the README's proxy in relay mode and of the rollout server.
        default: '8091',
        flagOnly: true,
      },
      basePath: SERVE.options.basePath,
      viewKeys: {
        ...SERVE.options.viewKeys,
        help: 'Key for the page; @file reads it from a file',
      },
      tokenizer: {
        flag: 'tokenizer',
        type: 'text',
        help:
          "Tokenizer for the text of tokens: the model's directory, its tokenizer.json, or its id on the " +
          "Hugging Face hub. Without it, only the embedded model's tokens have text, others show their ids",
      },
    }),
    logLevel: { ...logLevel, default: 'warn' },
    logFormat,
  },
} as const satisfies CommandSpec

export type ViewConfig = CommandConfig<typeof VIEW>
