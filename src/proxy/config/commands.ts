/**
 * All commands with their options. Flags, environment variables, file keys, defaults, the help text, the tables of
 * `docs/configuration.md` and the types of the configurations are derived from these tables.
 */
import type { CommandSpec } from './option.ts'
import { BACKUP } from './options/backup.ts'
import { DATASET_HARBOR } from './options/dataset.ts'
import { DEMO } from './options/demo.ts'
import { DOCTOR } from './options/doctor.ts'
import { ENGINE } from './options/engine.ts'
import { HEALTH } from './options/health.ts'
import { OPERATOR_COMMANDS } from './options/operator.ts'
import { ROLLOUT } from './options/rollout.ts'
import { SERVE } from './options/serve.ts'
import {
  SESSIONS_EXPORT,
  SESSIONS_GREP,
  SESSIONS_IMPORT,
  SESSIONS_LIST,
  SESSIONS_SHOW,
} from './options/sessions.ts'
import { VERIFY } from './options/verify.ts'
import { VIEW } from './options/view.ts'
import { WORKER } from './options/worker.ts'

export const COMMANDS = [
  SERVE,
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
