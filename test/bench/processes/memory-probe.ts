/**
 * Loaded into a proxy before its own program (`node --expose-gc --import`): reports on request how much memory the
 * process uses after a garbage collection, and how much of it its sessions account for.
 */
import { getHeapSpaceStatistics } from 'node:v8'
import { LiveSessions } from '../../../src/proxy/session/state/live-sessions.ts'
import { MEASURE, type MemoryParts, type RetainedBytes } from '../parts/held-bytes.ts'

/** More than one collection, because freed objects may have retained others: finalizers, buffers, weak maps. */
const COLLECTIONS = 4

/** The amount of compiled code varies by megabytes, and does not belong to sessions. */
const CODE_SPACES = /code|trusted/

let lives: LiveSessions | undefined
const sessions = new Set<string>()

const { acquire } = LiveSessions.prototype
LiveSessions.prototype.acquire = function (sessionId) {
  lives = this
  sessions.add(sessionId)
  return acquire.call(this, sessionId)
}

process.on('message', async (command) => {
  if (command === MEASURE) process.send!(await measure())
})
process.channel?.unref()

async function measure(): Promise<RetainedBytes> {
  for (let count = 0; count < COLLECTIONS; count += 1) {
    globalThis.gc!()
    await new Promise((resolve) => setImmediate(resolve))
  }
  const heapBytes = getHeapSpaceStatistics()
    .filter(({ space_name: name }) => !CODE_SPACES.test(name))
    .reduce((sum, { space_used_size: bytes }) => sum + bytes, 0)
  return { heapBytes, externalBytes: process.memoryUsage().external, counted: countedParts() }
}

function countedParts(): MemoryParts {
  const sum: MemoryParts = {
    requests: 0,
    messages: 0,
    values: 0,
    prompts: 0,
    turns: 0,
    all: lives?.bytes ?? 0,
  }
  for (const sessionId of sessions) {
    using used = acquire.call(lives!, sessionId)
    const { requests, messages, prompts, turns } = used.memory
    sum.requests += requests.bytes
    sum.messages += messages.bytes
    sum.values += Math.max(requests.valueBytes, messages.valueBytes)
    sum.prompts += prompts.bytes
    sum.turns += turns?.bytes ?? 0
  }
  return sum
}
