import type { ServerRolloutsConfig } from '../included-products.ts'
import { checkServeConfig } from '../proxy/config/check-serve.ts'
import type { ServeConfig } from '../proxy/config/options/serve.ts'
import { toDatabaseName } from '../proxy/store/port/database-name.ts'
import type { StartingModel } from '../proxy/tokens/model/token-model.ts'
import { explainListenFailure } from './fail.ts'
import { createLogger } from './logger.ts'
import { exitOnStoreLoss } from './process-lifecycle.ts'
import { serveAnnounced } from './serve-announced.ts'

/** Runs `llm-proxy serve`: serves until a signal. @returns the exit code */
export async function run(config: ServeConfig & ServerRolloutsConfig): Promise<number> {
  checkServeConfig(config)
  const logger = createLogger(config.logLevel, config.logFormat)
  const model = config.tokenizer === undefined ? undefined : await startTokenModel(config)
  const { startServer } = await import('../main.ts')
  const platform = model && { openModel: () => model.waitUntilReady() }
  const server = await startServer(config, { logger, platform }).catch(async (error: unknown) => {
    await model?.close()
    throw explainListenFailure(error, config.host, config.port)
  })
  exitOnStoreLoss(server.lost, logger)
  const { url, healthUrl, inspectorUrl } = server
  const { mode, db } = config
  return serveAnnounced(server, config.shutdownGraceMs, logger, {
    readyLine: formatReadyLine(config, url),
    hints: formatHints(url, inspectorUrl),
    started: { command: 'serve', url, health_url: healthUrl, mode, db: toDatabaseName(db) },
  })
}

/**
 * Starts the token model before the server: Python starts on a separate thread while this one loads the rest of the
 * program, and an invalid tokenizer is reported before anything else happens.
 */
async function startTokenModel(config: ServeConfig): Promise<StartingModel | undefined> {
  const { startModel } = await import('../token-mode.ts')
  return startModel(config)
}

/**
 * Returns the line for stdout: `llm-proxy listening on http://127.0.0.1:8080 (local, embedded engine, db
 * ./llm-proxy.db)`
 */
export function formatReadyLine(config: ServeConfig, url: string): string {
  const engines = config.mode === 'local' ? [describeEngines(config)] : []
  const store = config.db === 'memory' ? 'sessions in memory only' : `db ${toDatabaseName(config.db)}`
  return `llm-proxy listening on ${url} (${[config.mode, ...engines, store].join(', ')})`
}

function describeEngines(config: ServeConfig): string {
  const count = config.engineUrls.length
  if (config.awaitEngines) return 'awaits engines'
  if (count === 0) return 'embedded engine'
  return count === 1 ? '1 engine' : `${count} engines`
}

/** Returns the lines that explain how to use the server. */
export function formatHints(url: string, inspectorUrl: string | undefined): string[] {
  const inspector = inspectorUrl === undefined ? '' : `${inspectorUrl} in a browser; `
  return [
    '',
    'Base URL of an agent (choose any session id, a new one per rollout):',
    `  OpenAI clients     ${url}/my-session/v1`,
    `  Anthropic clients  ${url}/my-session`,
    `Recorded data:       ${inspector}${url}/sessions/my-session/trajectories for a trainer`,
  ]
}
