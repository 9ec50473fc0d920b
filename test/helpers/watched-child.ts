/** Loaded into a process before its program: once it serves requests, it notes where its event loop stands still. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { appendFileSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'
import { STALL_LIMIT_MS, STALLS_FILE } from './stall-limit.ts'

const REQUEST_CHANNEL = 'http.server.request.start'
const file = process.env[STALLS_FILE]

// The threads that the program starts load this too.
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
