import t from 'tap'
import { burnCpu } from '../helpers/loop-cpu.ts'
import { STALL_LIMIT_MS } from '../helpers/stall-limit.ts'
import { watchStalls } from '../helpers/stall-watch.ts'

t.test('the stall watch detects work that blocks the event loop, and ignores waits', async (t) => {
  const idle = await watchStalls(t)
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * STALL_LIMIT_MS)
  t.ok((await idle.worstMs()) < STALL_LIMIT_MS, 'a thread that is not running has not stalled')
  const busy = await watchStalls(t)
  burnCpu(1.5 * STALL_LIMIT_MS)
  t.ok((await busy.worstMs()) > STALL_LIMIT_MS)
})

t.test('an input that stalls the loop each time is reported, and one that did so once is not', async (t) => {
  const { withoutStall } = await watchStalls(t)
  let attempts = 0
  await withoutStall(async () => {
    attempts += 1
    if (attempts === 1) burn()
  })
  t.equal(attempts, 2)
  await t.rejects(
    withoutStall(async () => burn()),
    /was blocked/,
  )
})

function burn(): void {
  burnCpu(1.2 * STALL_LIMIT_MS)
}
