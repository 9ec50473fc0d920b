/** Options of the command that checks a setup: those of `serve`, whose configuration it checks. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { SERVE } from './serve.ts'
import { json } from './shared.ts'

export const DOCTOR = {
  name: 'doctor',
  summary:
    'Check what serve would find with the same options: engines, keys, disk, port; exit 1 on a failure',
  options: { ...SERVE.options, json: { ...json, help: 'Print the result as JSON instead of lines' } },
} as const satisfies CommandSpec

export type DoctorConfig = ConfigOf<typeof DOCTOR>
