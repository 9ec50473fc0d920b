/** Options of the command that looks at a set-up: those of `serve`, for what it would find. */
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
