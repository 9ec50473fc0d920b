/** Reads process statistics of Linux. Elsewhere there is no /proc, and the figures are NaN. */
import { readdirSync, readFileSync } from 'node:fs'

/** `USER_HZ`, which the kernel's ABI fixes at 100 on every platform that Node runs on. */
const TICKS_PER_SECOND = 100
/** The indexes of utime and stime among the fields after the command's name, which may itself contain spaces. */
const [UTIME, STIME] = [11, 12]

/** Returns the CPU time that all threads of a process have used, in seconds, in steps of 10 ms. */
export function getCpuSeconds(pid: number): number {
  const fields = parseFieldsAfterName(read(`/proc/${pid}/stat`))
  return (Number(fields[UTIME]) + Number(fields[STIME])) / TICKS_PER_SECOND
}

/**
 * Returns the CPU time of the threads of a process, in seconds, by name: Node names its own, and each worker is named
 * at its start.
 */
export function getThreadSeconds(pid: number): Record<string, number> {
  const seconds: Record<string, number> = {}
  for (const thread of getThreads(pid)) {
    const stat = read(`/proc/${pid}/task/${thread}/stat`)
    const fields = parseFieldsAfterName(stat)
    const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'))
    // A thread that has ended meanwhile has no file.
    if (name === '') continue
    seconds[name] = (seconds[name] ?? 0) + (Number(fields[UTIME]) + Number(fields[STIME])) / TICKS_PER_SECOND
  }
  return seconds
}

/** Counts the running descendants of a process. */
export function countDescendants(pid: number): number {
  const children = getThreads(pid).flatMap((thread) =>
    read(`/proc/${pid}/task/${thread}/children`).split(' ').filter(Boolean).map(Number),
  )
  return children.reduce((sum, child) => sum + 1 + countDescendants(child), 0)
}

/** Returns the resident set size in MiB. */
export function getRssMib(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB/m.exec(read(`/proc/${pid}/status`))?.[1]
  return Number(kib ?? Number.NaN) / 1024
}

function parseFieldsAfterName(stat: string): string[] {
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
}

/** Adds `figures`, multiplied by `factor`, to the sums of the same names. */
export function addScaled(
  sums: Record<string, number>,
  figures: Record<string, number>,
  factor: number,
): void {
  for (const [name, value] of Object.entries(figures)) sums[name] = (sums[name] ?? 0) + value * factor
}

function getThreads(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`)
  } catch {
    return []
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}
