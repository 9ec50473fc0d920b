import { ProxyError } from '../../base/errors.ts'
import { isLoopback } from '../../proxy/config/notes.ts'
import type { ViewConfig } from '../../proxy/config/options/view.ts'
import { NO_KEYS } from '../../proxy/http/access/keyring.ts'
import { listenToViewers } from '../../proxy/http/view.ts'
import { toDatabaseName } from '../../proxy/store/port/database-name.ts'
import { explainListenFailure } from '../fail.ts'
import { createLogger } from '../logger.ts'
import { serveAnnounced } from '../serve-announced.ts'
import { withView } from './open-view.ts'

/** The grace period on shutdown, which is short because reads need not complete. */
const GRACE_MS = 1_000

/** Runs `llm-proxy view`: serves the inspector of a database until a signal. @returns the exit code */
export function run(config: ViewConfig): Promise<number> {
  const { host, port, basePath, viewKeys, db } = config
  const loopbackOnly = isLoopback(host)
  if (!loopbackOnly && viewKeys.length === 0) {
    const message = `refusing to listen on ${host} without a key: anyone who can reach it could read every session. Set --view-key, or leave --host out`
    throw new ProxyError('config_invalid', message)
  }
  const logger = createLogger(config.logLevel, config.logFormat)
  return withView({ ...config, logger }, async (view) => {
    const keys = { ...NO_KEYS, viewKeys }
    const http = await listenToViewers({ ...view, host, port, basePath, keys, loopbackOnly }).catch(
      (error: unknown) => {
        throw explainListenFailure(error, host, port)
      },
    )
    const stop = async () => {
      await http.close()
      return { drained: true }
    }
    return serveAnnounced({ stop }, GRACE_MS, logger, {
      readyLine: `llm-proxy view of ${db} on ${http.url}/ui`,
      started: { command: 'view', url: http.url, db: toDatabaseName(db) },
    })
  })
}
