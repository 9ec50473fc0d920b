/** Repeatedly measures the CPU time of this process's event loop, which the load of the machine does not change. */

const INTERVAL_MS = 10

export interface LoopWatch {
  /** Takes a measurement immediately. */
  measure(): void
  stop(): void
}

/** Uses the CPU for this time. It rarely reads its CPU time, because each read is a system call. */
export function burnCpu(ms: number): void {
  const endUs = cpuUs() + ms * 1_000
  while (cpuUs() < endUs) for (let count = 0; count < 100_000; count += 1);
}

function cpuUs(): number {
  const { user, system } = process.threadCpuUsage()
  return user + system
}

/**
 * Reports at each interval how much CPU time the loop's thread has used since the last: more than the interval means
 * that the loop was blocked. The timer does not keep the process alive.
 * @param notify receives milliseconds
 */
export function watchLoop(notify: (cpuMs: number) => void): LoopWatch {
  let last = process.threadCpuUsage()
  const measure = () => {
    const { user, system } = process.threadCpuUsage(last)
    notify((user + system) / 1_000)
    last = process.threadCpuUsage()
  }
  const timer = setInterval(measure, INTERVAL_MS).unref()
  return { measure, stop: () => clearInterval(timer) }
}
