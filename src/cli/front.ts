import { ProxyError } from '../base/errors.ts'
import { uiRoutes } from '../inspector/routes/routes.ts'
import type { FrontConfig } from '../proxy/config/options/front.ts'
import { startFront } from '../proxy/http/front/server.ts'
import { announce } from './announce.ts'
import { explainListenFailure } from './fail.ts'
import { createLogger } from './logger.ts'
import { serveUntilSignal, watchUnforeseen } from './process-life.ts'

/** `llm-proxy front`: several nodes as one proxy, until a signal. @returns the exit code */
export async function run(config: FrontConfig): Promise<number> {
  const { host, port, nodeUrls, nodeTimeoutMs: timeoutMs } = config
  if (nodeUrls.length === 0)
    throw new ProxyError('config_invalid', 'front needs its nodes: give node-url once for each, node 1 first')
  const logger = createLogger(config.logLevel)
  const front = await startFront({ host, port, nodeUrls, timeoutMs, logger, inspector: uiRoutes }).catch(
    (error: unknown) => {
      throw explainListenFailure(error, host, port)
    },
  )
  watchUnforeseen(logger)
  logger.info({ url: front.url, nodes: nodeUrls.length }, 'listening')
  const served = serveUntilSignal({ stop: (graceMs) => front.close(graceMs) }, config.shutdownGraceMs, logger)
  announce(`llm-proxy front listening on ${front.url} (${nodeUrls.length} nodes)`, [])
  return served
}
