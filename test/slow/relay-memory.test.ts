import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'

const ROUNDS = 11
const REQUESTS_PER_ROUND = 2_000
/** Caches vary in size; a leak per request would exceed this. */
const SLACK_BYTES_PER_REQUEST = 50

t.test('completed and aborted requests leave nothing in proxy and worker', async (t) => {
  const child = join(import.meta.dirname, 'relay-memory-child.ts')
  const args = ['--expose-gc', child, String(ROUNDS), String(REQUESTS_PER_ROUND)]
  const { stdout } = await promisify(execFile)(process.execPath, args)
  const { heaps, queued } = JSON.parse(stdout) as { heaps: number[]; queued: number }
  // The first rounds fill pools. A leak adds to every round, and newly compiled code to one or two of them.
  const added = heaps.slice(2).map((bytes, round) => bytes - heaps[round + 1]!)
  const median = added.toSorted((a, b) => a - b)[added.length >> 1]!
  t.ok(median < REQUESTS_PER_ROUND * SLACK_BYTES_PER_REQUEST, `${added.join(', ')} bytes in each round`)
  t.equal(queued, 0)
})
