/** The input and the result of every row. */
import type { PostgresServer } from '../../helpers/postgres.ts'
import type { LoadGenerator } from '../parts/load-generator.ts'
import type { TargetName } from '../parts/targets.ts'

export interface Bench {
  /** The URL of the fake engine without a rate limit. */
  engineUrl: string
  /** The number of events that the engine writes at once to each stream. */
  eventsPerWrite: number
  load: LoadGenerator
  /** The folder for databases, which is deleted at the end. */
  folder: string
  /** The server of the target `local-postgres`; undefined if the target is not measured. */
  postgres: PostgresServer | undefined
  /** Whether to check that everything works instead of measuring. */
  quick: boolean
  /** undefined: each row's own number. */
  rounds: number | undefined
  targetNames: readonly TargetName[]
  /** Rows that replay sessions measure only loads whose names contain this text. */
  loads: string
  cpuProfileFolder: string | undefined
}

/** A goal of the product's speed or size. */
export interface Aim {
  what: string
  wanted: string
  measured: string
  met: boolean
}

export interface RowResult {
  row: string
  /** The report in Markdown. */
  report: string
  aims: Aim[]
  /** The figures for `--json`. */
  figures: unknown
}

export type Row = (bench: Bench) => Promise<RowResult>
