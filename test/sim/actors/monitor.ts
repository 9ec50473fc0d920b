/** Probes `/health` as a load balancer does: it must report when nothing can be committed, and only then. */
import { Machine, sleep, type World } from '../world/world.ts'
import { sendRequest } from './client.ts'
import type { History } from './history.ts'
import type { SimProxy } from './proxy.ts'

const INTERVAL_MS = 2_500

export function watchHealth(world: World, proxy: SimProxy, history: History): { stop(): void } {
  const machine = new Machine('monitor')
  let isUsableSinceMs = 0
  let wasUsable = true
  const observeDisk = () => {
    if (world.disk.isUsable !== wasUsable) isUsableSinceMs = world.time.nowMs
    wasUsable = world.disk.isUsable
  }
  const probe = async () => {
    for (;;) {
      await sleep(INTERVAL_MS)
      observeDisk()
      if (!proxy.isUp) continue
      const { starts } = proxy
      const sentAtMs = world.time.nowMs
      const { status, text, isComplete } = await sendRequest(world, {
        method: 'GET',
        path: '/health',
        timeoutMs: 20_000,
      })
      observeDisk()
      if (!isComplete || starts !== proxy.starts || !proxy.isUp || isUsableSinceMs > sentAtMs) continue
      const reported = JSON.parse(text).status
      if (wasUsable && status !== 200)
        world.reportViolation(`/health reports ${reported} while everything can be recorded`)
      const hasFailed = history.attempts.some(
        ({ code, endedAtMs }) =>
          code === 'store_failed' && endedAtMs! > world.disk.brokenAtMs && endedAtMs! < sentAtMs,
      )
      if (world.disk.isBroken && hasFailed && status === 200)
        world.reportViolation('/health reports ok while nothing can be recorded')
    }
  }
  machine.run(() => void probe())
  return { stop: () => machine.kill() }
}
