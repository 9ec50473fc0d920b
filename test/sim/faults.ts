/** Faults and their times, drawn once from the seed, so that a run can be repeated without some of them. */

export const FAULT_KINDS = [
  'link_reset',
  'link_blackholed',
  'link_delayed',
  'link_cut',
  'stream_reset',
  'stream_blackholed',
  'stream_delayed',
  'worker_killed',
  'worker_twin',
  'worker_stopped',
  'worker_repeats',
  'engine_killed',
  'engine_stalls',
  'engine_resets',
  'engine_ends_early',
  'engine_bad_ids',
  'engine_omits_ids',
  'engine_new_weights',
  'engine_errors',
  'disk_full',
  'disk_broken',
  'disk_slow',
  'store_killed',
  'proxy_killed',
  'proxy_stopped',
  'clock_stepped',
] as const

/** Faults that cut responses. Where responses continue, no response fails because of them. */
export const CUT_KINDS = [
  'response_aborted',
  'response_error_event',
  'stream_reset',
  'worker_killed',
  'engine_killed',
] as const

export type FaultKind = (typeof FAULT_KINDS)[number] | (typeof CUT_KINDS)[number]

export interface Fault {
  kind: FaultKind
  atMs: number
  /** Selects the target, in [0, 1). */
  pick: number
  /** The severity or duration, in [0, 1). */
  amount: number
}

/** The time until which faults are injected. */
export const FAULTS_UNTIL_MS = 30_000

export function drawFaults(random: () => number): Fault[] {
  // One run in ten has no faults, and most have a few: a run in which everything breaks shows little.
  const count = random() < 0.1 ? 0 : 1 + Math.floor(12 * random() ** 2)
  // Some runs repeat one or two kinds of fault.
  const kinds = random() < 0.25 ? [drawKind(random), drawKind(random)] : FAULT_KINDS
  const faults = Array.from({ length: count }, () => ({
    kind: kinds[Math.floor(random() * kinds.length)]!,
    atMs: Math.round(FAULTS_UNTIL_MS * random() * 1_000) / 1_000,
    pick: random(),
    amount: random(),
  }))
  return faults.sort((a, b) => a.atMs - b.atMs)
}

/** Draws cuts for a run whose responses continue. */
export function drawCuts(random: () => number): Fault[] {
  return Array.from({ length: Math.floor(10 * random()) }, () => ({
    // Most are of the two kinds that need no other fault.
    kind: CUT_KINDS[Math.floor(CUT_KINDS.length * random() ** 2)]!,
    atMs: Math.round(FAULTS_UNTIL_MS * random() ** 2 * 1_000) / 1_000,
    pick: random(),
    amount: random(),
  }))
}

export function formatFault({ kind, atMs, pick, amount }: Fault): string {
  return `${kind} at ${(atMs / 1_000).toFixed(3)} s (${pick.toFixed(3)}, ${amount.toFixed(3)})`
}

function drawKind(random: () => number): FaultKind {
  return FAULT_KINDS[Math.floor(random() * FAULT_KINDS.length)]!
}
