/** The rollouts of a proxy: run by its process, or forwarded to a rollout server. */
import type { FastifyPluginCallback } from 'fastify'
import type { Logger } from '../../base/logger.ts'
import type { ServerRolloutsConfig } from '../options.ts'
import { forwardRollouts } from './forward-rollouts.ts'
import { InProcessRollouts } from './in-process-rollouts.ts'
import type { RolloutOwners } from './owners.ts'
import { rolloutRoutes } from './routes.ts'

export type { ServerRolloutsConfig } from '../options.ts'
export { checkRollouts } from './check-rollouts.ts'

type RolloutsConfig = ServerRolloutsConfig & { adminKeys: readonly string[]; db?: string }

/**
 * Creates the rollouts and their routes. `own` is set if this process runs the rollouts.
 * @throws ProxyError `config_invalid`
 */
export function openRollouts(
  config: RolloutsConfig,
  logger: Logger,
  owners?: RolloutOwners,
): { own?: InProcessRollouts; routes: FastifyPluginCallback | undefined } {
  if (config.runner !== undefined) {
    const own = new InProcessRollouts(config, logger, owners)
    return { own, routes: rolloutRoutes(own) }
  }
  const { rolloutServer: serverUrl, adminKeys } = config
  const routes = serverUrl === undefined ? undefined : forwardRollouts({ serverUrl, adminKey: adminKeys[0] })
  return { routes }
}
