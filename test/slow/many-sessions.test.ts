import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { IS_FULL } from '../helpers/tier.ts'

/** `MANY_SESSIONS=100000` runs that many (and needs `--timeout=1800` of tap). */
const SESSIONS = Number(process.env.MANY_SESSIONS ?? (IS_FULL ? 6_000 : 3_000))
const ROUNDS = 6

interface MemoryUse {
  heap: number
  counted: number
  cached: number
}

async function measure(t: Test, memoryBytes: number, rounds: number, sessions: number): Promise<MemoryUse[]> {
  const child = join(import.meta.dirname, 'many-sessions-child.ts')
  const args = ['--expose-gc', child, `${t.testdir({})}/t.db`, memoryBytes, rounds, sessions].map(String)
  const { stdout } = await promisify(execFile)(process.execPath, args)
  return JSON.parse(stdout) as MemoryUse[]
}

t.test('sessions that are never ended stay within their memory limit', async (t) => {
  const budget = 4_000_000
  const measured = await measure(t, budget, ROUNDS, Math.ceil(SESSIONS / ROUNDS))
  for (const { counted } of measured) t.ok(counted <= budget, `${counted} bytes are counted`)
  // The first rounds fill the memory, and compile code.
  const [before, after] = [measured[2]!, measured[5]!]
  t.ok(before.cached < 1_000, `${before.cached} sessions are cached`)
  t.ok(Math.abs(after.cached - before.cached) < 10)
  t.ok(after.heap - before.heap < budget / 2, `${before.heap} to ${after.heap} bytes`)
})

t.test('the accounted memory of a session is its actual memory', async (t) => {
  const sessions = 500
  const [, first, second] = await measure(t, 1e12, 3, sessions)
  const [real, counted] = [second!.heap - first!.heap, second!.counted - first!.counted]
  t.ok(
    real < 1.3 * counted && counted < 1.6 * real,
    `${real / sessions} bytes, counted ${counted / sessions}`,
  )
})
