import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { EmbeddedEngine } from '../embedded/engine/embedded-engine.ts'
import { Playbook } from '../embedded/engine/playbook.ts'
import { buildEngineServer, type EngineServer } from '../embedded/server/server.ts'
import type { EngineConfig } from '../proxy/config/options/engine.ts'
import { formatBaseUrl } from '../proxy/http/transport/base-url.ts'
import { explainListenFailure } from './fail.ts'
import { createLogger } from './logger.ts'
import { serveAnnounced } from './serve-announced.ts'

/** The grace period on shutdown, long enough for a short completion; the embedded engine has no state to lose. */
const GRACE_MS = 5_000
const DRAIN_POLL_MS = 20

/** Runs `llm-proxy engine`: serves the embedded engine until a signal. @returns the exit code */
export async function run(config: EngineConfig): Promise<number> {
  const logger = createLogger(config.logLevel, config.logFormat)
  const playbook = config.playbook === undefined ? undefined : Playbook.fromFile(config.playbook)
  const engine = new EmbeddedEngine({ ...config, playbook })
  const server = buildEngineServer(engine)
  await server.listen({ host: config.host, port: config.port }).catch((error: unknown) => {
    throw explainListenFailure(error, config.host, config.port)
  })
  const { address, port } = server.server.address() as AddressInfo
  const url = formatBaseUrl({ host: address, port })
  const service = { stop: (graceMs: number) => stop(server, graceMs) }
  const { model } = engine
  return serveAnnounced(service, GRACE_MS, logger, {
    readyLine: `llm-proxy engine listening on ${url} (model ${model})`,
    hints: ['', `Give it to a proxy:  llm-proxy --engine-url ${url}`],
    started: { command: 'engine', url, model },
  })
}

async function stop(server: EngineServer, graceMs: number): Promise<{ drained: boolean }> {
  server.server.close()
  const deadline = Date.now() + graceMs
  while (server.counters.running > 0 && Date.now() < deadline) await sleep(DRAIN_POLL_MS)
  const drained = server.counters.running === 0
  await server.close()
  return { drained }
}
