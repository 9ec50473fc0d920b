/**
 * All commands with their options. Flags, environment variables, file keys, defaults, the help text, the tables of
 * `docs/configuration.md` and the types of the configurations are derived from these tables.
 */
import type { CommandConfig, CommandSpec } from './proxy/config/option.ts'
import { BACKUP } from './proxy/config/options/backup.ts'
import { DATASET_HARBOR } from './proxy/config/options/dataset.ts'
import { DEMO } from './proxy/config/options/demo.ts'
import { ENGINE } from './proxy/config/options/engine.ts'
import { HEALTH } from './proxy/config/options/health.ts'
import { OPERATOR_COMMANDS } from './proxy/config/options/operator.ts'
import { SERVE } from './proxy/config/options/serve.ts'
import {
  SESSIONS_EXPORT,
  SESSIONS_GREP,
  SESSIONS_IMPORT,
  SESSIONS_LIST,
  SESSIONS_SHOW,
} from './proxy/config/options/sessions.ts'
import { json } from './proxy/config/options/shared.ts'
import { VERIFY } from './proxy/config/options/verify.ts'
import { VIEW } from './proxy/config/options/view.ts'
import { WORKER } from './proxy/config/options/worker.ts'
import { ROLLOUT, SERVER_ROLLOUTS } from './rollout/options.ts'

/** The command `serve` with the options of every product. */
export const SERVE_COMMAND = {
  ...SERVE,
  options: { ...SERVE.options, ...SERVER_ROLLOUTS },
} as const satisfies CommandSpec

export type ServerConfig = CommandConfig<typeof SERVE_COMMAND>

/** The command `doctor`, which checks the configuration of `serve` and therefore accepts its options. */
export const DOCTOR = {
  name: 'doctor',
  summary:
    'Check what serve would find with the same options: engines, keys, disk, port; exit 1 on a failure',
  options: {
    ...SERVE_COMMAND.options,
    json: { ...json, help: 'Print the result as JSON instead of lines' },
  },
} as const satisfies CommandSpec

export type DoctorConfig = CommandConfig<typeof DOCTOR>

export const COMMANDS = [
  SERVE_COMMAND,
  WORKER,
  ENGINE,
  ROLLOUT,
  SESSIONS_LIST,
  SESSIONS_GREP,
  SESSIONS_SHOW,
  SESSIONS_EXPORT,
  SESSIONS_IMPORT,
  BACKUP,
  VIEW,
  VERIFY,
  DATASET_HARBOR,
  HEALTH,
  DOCTOR,
  DEMO,
  ...OPERATOR_COMMANDS,
] as const satisfies readonly CommandSpec[]
