/** Constraints between the options of a proxy that runs rollouts. */
import { ProxyError } from '../../base/errors.ts'
import { isLoopback } from '../../proxy/config/notes.ts'
import type { ServeConfig } from '../../proxy/config/options/serve.ts'
import type { ServerRolloutsConfig } from '../options.ts'

/**
 * Checks the options of a proxy with a runner, because a client with access to `/rollouts` can run agents on this
 * machine.
 * @throws ProxyError `config_invalid`
 */
export function checkRollouts({
  runner,
  rolloutServer,
  adminKeys,
  host,
  tlsCert,
}: ServeConfig & ServerRolloutsConfig): void {
  if (runner === undefined) return
  if (rolloutServer !== undefined) {
    reject('runner and rollout-server both serve /rollouts: omit one of them')
  }
  if (adminKeys.length === 0 && !isLoopback(host)) {
    reject(
      `any client that reaches ${host} could run agents on this machine: give an admin-key, or listen on 127.0.0.1`,
    )
  }
  if (tlsCert !== undefined) {
    reject(
      'agents of a runner connect to the proxy without TLS: run llm-proxy rollout --listen, and give its URL as rollout-server',
    )
  }
}

function reject(message: string): never {
  throw new ProxyError('config_invalid', message)
}
