import type { AddressInfo } from 'node:net'
import { ProxyError } from '../../base/errors.ts'
import { loadConfig } from '../../proxy/config/load.ts'
import { isLoopback } from '../../proxy/config/notes.ts'
import { formatBaseUrl } from '../../proxy/http/transport/base-url.ts'
import { ROLLOUT, type RolloutConfig } from '../../rollout/options.ts'
import { NO_PROXY } from '../../rollout/remote-agent-loop.ts'
import { InProcessRollouts } from '../../rollout/server/in-process-rollouts.ts'
import { buildRolloutServer } from '../../rollout/server/server.ts'
import { explainListenFailure } from '../fail.ts'
import { createLogger } from '../logger.ts'
import { serveAnnounced } from '../serve-announced.ts'

/**
 * There is no grace period, because agents run for minutes: they are cancelled on shutdown, and the trainer retries.
 */
const STOP_GRACE_MS = 0

/** The options of a run of a file of tasks, which have no meaning for a server. */
const FILE_OPTIONS = ['tasks', 'output', 'samplesPerTask', 'retryFailed'] as const

/** Runs `llm-proxy rollout --listen`: runs rollouts for clients until a signal. @returns the exit code */
export async function listen(config: RolloutConfig, address: string): Promise<number> {
  const { host, port } = parseAddress(address)
  rejectFileOptions(config)
  if (config.adminKeys.length === 0 && !isLoopback(host)) {
    const message = `--listen ${address}: any client that can connect can run agents on this machine; give --admin-key, or listen on 127.0.0.1`
    throw new ProxyError('config_invalid', message)
  }
  const logger = createLogger('info')
  if (config.proxyUrl === undefined) throw new ProxyError('config_invalid', NO_PROXY)
  const own = new InProcessRollouts(config, logger)
  await using closing = new AsyncDisposableStack()
  closing.defer(() => own.close())
  const { adminKeys, proxyUrl, tlsCa } = config
  await own.begin({ adminKeys, proxyUrl, tlsCa })
  const { rollouts } = own
  const server = buildRolloutServer({ rollouts, keys: config.adminKeys })
  closing.defer(() => server.close())
  await server.listen({ host, port }).catch((error: unknown) => {
    throw explainListenFailure(error, host, port)
  })
  const bound = server.server.address() as AddressInfo
  const url = formatBaseUrl({ host: bound.address, port: bound.port })
  const stop = async (graceMs: number) => ({ drained: await rollouts.stop(graceMs) })
  return await serveAnnounced({ stop }, STOP_GRACE_MS, logger, {
    readyLine: `llm-proxy rollout listening on ${url}`,
    started: { command: 'rollout', url },
  })
}

/** Rejects options that would have no effect. @throws ProxyError `config_invalid` */
function rejectFileOptions(config: RolloutConfig): void {
  const defaults = loadConfig(ROLLOUT, {}, {})
  const given = FILE_OPTIONS.find((name) => config[name] !== defaults[name])
  if (given === undefined) return
  const message = `--${ROLLOUT.options[given].flag} has no effect with --listen: a server runs the tasks that its clients send`
  throw new ProxyError('config_invalid', message)
}

/** Parses `host:port`. @throws ProxyError `config_invalid` */
function parseAddress(address: string): { host: string; port: number } {
  const url = URL.canParse(`http://${address}`) ? new URL(`http://${address}`) : undefined
  const port = Number(/:(\d+)$/.exec(address)?.[1])
  if (url === undefined || !Number.isInteger(port) || port > 65_535 || /[/?#@\s]/.test(address)) {
    throw new ProxyError(
      'config_invalid',
      `--listen: invalid value "${address}": expected an address such as 127.0.0.1:8090`,
    )
  }
  return { host: url.hostname.replace(/^\[(.*)\]$/, '$1'), port }
}
