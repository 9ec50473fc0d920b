/** Determines whether a process that recorded its id is still running. */
import { readFileSync } from 'node:fs'

/** The result of {@link getProcessStart} for a zombie: a process that has ended but still has its id. */
const ENDED = 'ended'
/**
 * Indices of fields in /proc/pid/stat, counted after the name, which may contain any character:
 * https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
 */
const [STATE, START_TIME] = [0, 19]

/**
 * Returns a text that distinguishes a process from all others with its id: boot id and start time. Undefined if the
 * system does not report them.
 */
export function getProcessStart(pid: number): string | undefined {
  try {
    const about = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = about.slice(about.lastIndexOf(')') + 2).split(' ')
    if (['Z', 'X'].includes(fields[STATE]!)) return ENDED
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8')
    return `${boot.trim()} ${fields[START_TIME]}`
  } catch {
    return undefined
  }
}

/**
 * Returns whether the process is running. The id is not sufficient: in a restarted container each process has the same
 * id as before.
 * @param started result of {@link getProcessStart}; absent if it was unknown
 */
export function isAlive(pid: number, started: string | undefined): boolean {
  try {
    process.kill(pid, 0)
  } catch (error) {
    // EPERM: a process of another user has this id. It may be another process than the one that recorded it.
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return false
  }
  const now = getProcessStart(pid)
  if (now === undefined) return true
  if (now === ENDED) return false
  // Earlier versions recorded no start. This version records one, so a record without a start that contains the id of
  // this process is from an earlier process whose id was reused.
  return started === undefined ? pid !== process.pid : started === now
}
