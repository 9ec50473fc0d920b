/** Loaded into a process before its program: once it serves requests, it records stalls of its event loop. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { appendFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'
import { STALL_LIMIT_MS, STALLS_FILE } from './stall-limit.ts'

const REQUEST_CHANNEL = 'http.server.request.start'
const file = process.env[STALLS_FILE]

// The threads of the program load this file, too.
if (isMainThread && file !== undefined) {
  const { watchLoop } = await import('./loop-cpu.ts')
  const begin = () => {
    unsubscribe(REQUEST_CHANNEL, begin)
    watchLoop((ms) => {
      if (ms > STALL_LIMIT_MS) appendFileSync(file, `${ms}\n`)
    })
  }
  subscribe(REQUEST_CHANNEL, begin)
}
