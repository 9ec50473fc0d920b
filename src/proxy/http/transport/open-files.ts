import { readFileSync } from 'node:fs'

/**
 * How many files and sockets the operating system lets this process have open. Node raises the limit as far as it may
 * when it starts. @returns Infinity where the system does not tell (it does on Linux)
 */
export function openFilesLimit(): number {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
