/**
 * Loaded into a proxy before its program (`node --expose-gc --import`): reports on request the memory of the process
 * after a garbage collection, and the part that its sessions account for.
 */
import { getHeapSpaceStatistics } from 'node:v8'
import { LiveSessions } from '../../../src/proxy/session/state/live-sessions.ts'
import { MEASURE, type MemoryParts, type RetainedBytes } from '../parts/retained-bytes.ts'

/** More than one, because freed objects may have retained others: finalizers, buffers, weak maps. */
const COLLECTIONS = 4

/** The amount of compiled code varies by megabytes, and does not belong to sessions. */
const CODE_SPACES = /code|trusted/

let liveSessions: LiveSessions | undefined
const sessions = new Set<string>()

const { acquire } = LiveSessions.prototype
LiveSessions.prototype.acquire = function (sessionId) {
  liveSessions = this
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
  return { heapBytes, externalBytes: process.memoryUsage().external, counted: countParts() }
}

function countParts(): MemoryParts {
  const sum: MemoryParts = {
    requests: 0,
    messages: 0,
    values: 0,
    prompts: 0,
    turns: 0,
    all: liveSessions?.bytes ?? 0,
  }
  for (const sessionId of sessions) {
    using session = acquire.call(liveSessions!, sessionId)
    const { requests, messages, prompts, turns } = session.memory
    sum.requests += requests.bytes
    sum.messages += messages.bytes
    sum.values += Math.max(requests.valueBytes, messages.valueBytes)
    sum.prompts += prompts.bytes
    sum.turns += turns?.bytes ?? 0
  }
  return sum
}
