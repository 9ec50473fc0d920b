/** Options of the command that copies a database. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { db } from './shared.ts'

export const BACKUP = {
  name: 'backup',
  summary: 'Copy a SQLite database into a file, beside a running proxy',
  options: groupOptions('Backup', {
    db: { ...db, help: 'Database to copy; a proxy may be writing it' },
    force: {
      flag: 'force',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      help: 'Replace the file if it exists',
    },
  }),
} as const satisfies CommandSpec

export type BackupConfig = CommandConfig<typeof BACKUP>
