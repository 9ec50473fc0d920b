/**
 * Loaded into a process before its program (`node --import`). Once it is sent `watch`, it sends back each stall of its event
 * loop, in milliseconds of CPU time: a busy machine stalls nobody.
 */
import { isMainThread } from 'node:worker_threads'

export const STALL_LIMIT_MS = 200

const LOOK_MS = 25

// The threads that the program starts load this too.
if (isMainThread && process.send) {
  process.once('message', watch)
  // The channel is no reason to stay.
  process.channel?.unref()
}

function watch(): void {
  let last = process.threadCpuUsage()
  const look = () => {
    const { user, system } = process.threadCpuUsage(last)
    const ms = (user + system) / 1_000
    if (ms > STALL_LIMIT_MS && process.connected) process.send!({ stallMs: ms })
    last = process.threadCpuUsage()
  }
  setInterval(look, LOOK_MS).unref()
}
