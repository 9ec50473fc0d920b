/** Looks again and again at what CPU time the event loop of this process takes: a busy machine changes nothing about it. */

const LOOK_MS = 10

export interface LoopWatch {
  /** Looks now, too. */
  look(): void
  stop(): void
}

/** Uses the CPU for so long. It looks at its CPU time rarely: each look is a system call. */
export function burnCpu(ms: number): void {
  const endUs = cpuUs() + ms * 1_000
  while (cpuUs() < endUs) for (let count = 0; count < 100_000; count += 1);
}

function cpuUs(): number {
  const { user, system } = process.threadCpuUsage()
  return user + system
}

/**
 * Tells at each look how much CPU time the loop's thread has used since the look before: more than the time between two
 * looks means that the loop was not able to look. It keeps no process alive.
 * @param tell is told milliseconds
 */
export function watchLoop(tell: (cpuMs: number) => void): LoopWatch {
  let last = process.threadCpuUsage()
  const look = () => {
    const { user, system } = process.threadCpuUsage(last)
    tell((user + system) / 1_000)
    last = process.threadCpuUsage()
  }
  const looking = setInterval(look, LOOK_MS).unref()
  return { look, stop: () => clearInterval(looking) }
}
