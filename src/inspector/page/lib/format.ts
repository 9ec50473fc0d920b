/** Formats numbers, times and texts for display. */
export { isBlank, revealExactly, revealInvisible, stripStyles } from '../../../protocol/transcript/visible.ts'

export function formatNumber(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return '–'
  if (Number.isInteger(value)) return value.toLocaleString('en-US')
  const size = Math.abs(value)
  if (size < 10 ** -digits || size >= 1e9) return value.toExponential(2)
  return value.toLocaleString('en-US', { maximumFractionDigits: digits })
}

/** Formats a number in short form: 1,234 as 1.2k. */
export function formatShortNumber(value: number): string {
  if (value < 1_000) return String(value)
  if (value < 1_000_000) return `${(value / 1_000).toFixed(value < 10_000 ? 1 : 0)}k`
  return `${(value / 1_000_000).toFixed(1)}M`
}

export function formatDuration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return '–'
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1_000)} s`
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`
}

/**
 * Formats the time since `s`, such as `5 min ago`.
 * @param s seconds since the epoch
 */
export function formatAge(s: number): string {
  const past = Date.now() / 1_000 - s
  if (past < 60) return `${Math.max(0, Math.round(past))} s ago`
  if (past < 3_600) return `${Math.round(past / 60)} min ago`
  if (past < 172_800) return `${Math.round(past / 3_600)} h ago`
  return `${Math.round(past / 86_400)} d ago`
}

export function formatClockTime(s: number): string {
  return new Date(s * 1_000)
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, ' UTC')
}
