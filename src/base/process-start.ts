/** Whether a process that wrote down its number is still there. */
import { readFileSync } from 'node:fs'

/** Of a process that has ended, and is there as a number alone. */
const COLLECTED_BY_NOBODY = 'ended'
/** In /proc/pid/stat, counted behind the name, which may hold anything: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html */
const [STATE, START_TIME] = [0, 19]

/** When a process began, as text that no other process of its number has; undefined where the system does not tell. */
export function getProcessStart(pid: number): string | undefined {
  try {
    const about = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = about.slice(about.lastIndexOf(')') + 2).split(' ')
    if (['Z', 'X'].includes(fields[STATE]!)) return COLLECTED_BY_NOBODY
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8')
    return `${boot.trim()} ${fields[START_TIME]}`
  } catch {
    return undefined
  }
}

/**
 * A number is not enough: in a container that starts again each process has the number of the one before it.
 * @param started what {@link getProcessStart} told of it; absent where nobody could tell
 */
export function isAlive(pid: number, started: string | undefined): boolean {
  try {
    process.kill(pid, 0)
  } catch (error) {
    // Somebody else's process has a number too, and perhaps the one of a process that has ended.
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return false
  }
  const now = getProcessStart(pid)
  if (now === undefined) return true
  if (now === COLLECTED_BY_NOBODY) return false
  // Records of earlier versions have no start. This process did not write them.
  return started === undefined ? pid !== process.pid : started === now
}
