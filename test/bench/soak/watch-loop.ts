/**
 * Loaded into a process before its program (`node --import`). Once it receives `watch`, it sends each stall of its
 * event loop, in milliseconds of CPU time, which the load of the machine does not change.
 */
import { isMainThread } from 'node:worker_threads'

const STALL_LIMIT_MS = 200

const SAMPLE_MS = 25

// The threads of the program load this file, too.
if (isMainThread && process.send) {
  process.once('message', watch)
  // The channel must not keep the process alive.
  process.channel?.unref()
}

function watch(): void {
  let last = process.threadCpuUsage()
  const sample = () => {
    const { user, system } = process.threadCpuUsage(last)
    const ms = (user + system) / 1_000
    if (ms > STALL_LIMIT_MS && process.connected) process.send!({ stallMs: ms })
    last = process.threadCpuUsage()
  }
  setInterval(sample, SAMPLE_MS).unref()
}
