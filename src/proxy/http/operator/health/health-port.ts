/**
 * A second port, on which a separate thread serves only `GET /health` and `GET /health/live`. On the proxy's port a
 * probe waits until the event loop has processed the requests before it: if hundreds begin at the same time, the probe
 * times out, and an orchestrator would restart a proxy that is only busy.
 */
import { once } from 'node:events'
import type { Worker } from 'node:worker_threads'
import { startThread } from '../../../../base/assets.ts'
import { ProxyError } from '../../../../base/errors.ts'
import { formatBaseUrl } from '../../transport/base-url.ts'
import type { HealthResponse, HealthThreadConfig, HealthThreadReply } from './health-thread.ts'

interface HealthPortOptions {
  host: string
  /** 0: any free port. */
  port: number
  /** The path that precedes `/health`. Default: none. */
  basePath?: string
  /** Returns the current response of `/health` for a caller without a key. */
  getHealth: () => Promise<HealthResponse>
  /** The interval of the reports to the thread. Default: 1 s. */
  intervalMs?: number
  /** The time without a report after which the thread responds that the proxy is stuck. Default: 30 s. */
  stuckMs?: number
}

/** An open health port. */
export interface HealthPort {
  /** The URL to probe: `http://127.0.0.1:8081/health`. */
  readonly url: string
  close(): Promise<void>
}

const ENTRY_POINT = new URL('./health-thread.ts', import.meta.url)

const INTERVAL_MS = 1_000
/** Longer than any block of the event loop in normal operation, and shorter than the usual limits of orchestrators. */
const STUCK_MS = 30_000

/** Starts the thread and waits until it listens. @throws ProxyError `start_failed` if it cannot listen */
export async function openHealthPort(options: HealthPortOptions): Promise<HealthPort> {
  const { host, basePath = '', getHealth: health, intervalMs = INTERVAL_MS, stuckMs = STUCK_MS } = options
  const path = `${basePath}/health`
  const workerData: HealthThreadConfig = { host, port: options.port, path, stuckMs }
  const thread = startThread(ENTRY_POINT, { workerData, name: 'health' })
  try {
    const port = await waitForPort(thread)
    const notify = async () => thread.postMessage(await health())
    await notify()
    // A failure is ignored, because the thread detects missing reports itself.
    const timer = setInterval(() => void notify().catch(() => {}), intervalMs).unref()
    thread.unref()
    return {
      url: `${formatBaseUrl({ host, port })}${path}`,
      close: async () => {
        clearInterval(timer)
        await thread.terminate()
      },
    }
  } catch (error) {
    await thread.terminate()
    throw error
  }
}

async function waitForPort(thread: Worker): Promise<number> {
  const [reply] = (await once(thread, 'message')) as [HealthThreadReply]
  if ('failure' in reply)
    throw new ProxyError('start_failed', `--health-port cannot be used: ${reply.failure}`)
  return reply.port
}
