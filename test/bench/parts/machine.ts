/** Describes the machine of the figures. */
import { closeSync, fdatasyncSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os'
import { join } from 'node:path'
import { quantile } from './statistics.ts'
import { formatFigure } from './table.ts'

interface Machine {
  /** `2 cores of an AMD EPYC, 24 GiB, Debian GNU/Linux 12 (bookworm)` */
  description: string
  node: string
  /** Load average of the minute before: above 0 the machine has other load. */
  loadAverage: number
  /** The time of a sync of 4 KiB: the lower limit of every recorded request. */
  syncP50Ms: number
}

/**
 * Describes the machine.
 * @param folder a folder on the disk of the databases
 */
export function describeMachine(folder: string): Machine {
  const gib = Math.round(totalmem() / 2 ** 30)
  const model = cpus()[0]?.model.trim() ?? 'unknown processor'
  return {
    description: `${availableParallelism()} cores of an ${model}, ${gib} GiB, ${getSystemName()}`,
    node: process.version,
    loadAverage: loadavg()[0]!,
    syncP50Ms: measureSyncMs(folder),
  }
}

function getSystemName(): string {
  try {
    return /^PRETTY_NAME="(.*)"$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1] ?? release()
  } catch {
    return `${process.platform} ${release()}`
  }
}

function measureSyncMs(folder: string): number {
  const path = join(folder, 'sync-test')
  const file = openSync(path, 'w')
  const page = Buffer.alloc(4096)
  const times: number[] = []
  for (let count = 0; count < 100; count += 1) {
    writeSync(file, page)
    const startedAt = performance.now()
    fdatasyncSync(file)
    times.push(performance.now() - startedAt)
  }
  closeSync(file)
  rmSync(path)
  return quantile(times, 0.5)
}

export function formatMachine({ description, node, loadAverage, syncP50Ms }: Machine): string {
  const load = `load average ${loadAverage.toFixed(1)} before the run`
  return `${description}, Node ${node}, ${load}, a disk that syncs 4 KiB in ${formatFigure(syncP50Ms)} ms`
}
