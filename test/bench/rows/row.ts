/** What every row gets, and what it hands back. */
import type { LoadGenerator } from '../parts/load.ts'
import type { TargetName } from '../parts/targets.ts'

export interface Bench {
  /** The stand-in that goes as fast as it can. */
  engineUrl: string
  load: LoadGenerator
  /** For databases; removed in the end. */
  folder: string
  /** To see that everything works, not to measure. */
  quick: boolean
  targetNames: readonly TargetName[]
  /** Rows that replay sessions measure the loads that have this in their names. */
  loads: string
  cpuProfileFolder: string | undefined
}

/** Something that the product promises about its speed or size. */
export interface Aim {
  what: string
  wanted: string
  measured: string
  met: boolean
}

export interface RowResult {
  row: string
  /** Markdown. */
  report: string
  aims: Aim[]
  /** For `--json`. */
  figures: unknown
}

export type Row = (bench: Bench) => Promise<RowResult>
