import { ProxyError } from '../base/errors.ts'
import { toShownUrl } from '../base/shown-url.ts'
import type { WorkerConfig } from '../proxy/config/options/worker.ts'
import { createLogger } from './logger.ts'
import { serveAnnounced } from './serve-announced.ts'

/** Runs `llm-proxy worker`: serves the requests of its proxies until a signal. @returns the exit code */
export async function run(config: WorkerConfig): Promise<number> {
  if (config.proxyUrls.length === 0) {
    throw new ProxyError('config_invalid', 'a worker needs a proxy: give --proxy-url or PROXY_SERVER_URL')
  }
  const logger = createLogger(config.logLevel, config.logFormat)
  const { startWorker } = await import('../main.ts')
  const worker = startWorker(config, { logger })
  const { workerId } = worker
  return serveAnnounced(worker, config.shutdownGraceMs, logger, {
    readyLine: `llm-proxy worker ${workerId} serves ${config.proxyUrls.map(toShownUrl).join(', ')}`,
    started: { command: 'worker', worker_id: workerId },
  })
}
