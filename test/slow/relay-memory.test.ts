import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'

const CALLS_PER_ROUND = 2_000
/** Compiled code and caches vary in size; a leak per request would exceed this. */
const SLACK_BYTES_PER_CALL = 50

t.test('completed and aborted requests leave nothing in proxy and worker', async (t) => {
  const child = join(import.meta.dirname, 'relay-memory-child.ts')
  const args = ['--expose-gc', child, '6', String(CALLS_PER_ROUND)]
  const { stdout } = await promisify(execFile)(process.execPath, args)
  const { heaps, queued } = JSON.parse(stdout) as { heaps: number[]; queued: number }
  // The first rounds fill pools and compile code.
  const [before, after] = [heaps[2]!, heaps[5]!]
  t.ok(after - before < 3 * CALLS_PER_ROUND * SLACK_BYTES_PER_CALL, `${before} to ${after} bytes`)
  t.equal(queued, 0)
})
