/** Options of the command that container health checks run. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { proxyUrl, tlsCa } from './shared.ts'

export const HEALTH = {
  name: 'health',
  summary: 'Check a running proxy; exit 0 if it is healthy, 1 if not (for container health checks)',
  options: {
    ...groupOptions('Proxy', {
      url: proxyUrl,
      tlsCa,
      timeoutMs: {
        flag: 'timeout',
        type: 'duration',
        min: '1ms',
        default: '5s',
        flagOnly: true,
        help: 'Time limit of the response',
      },
    }),
  },
} as const satisfies CommandSpec

export type HealthConfig = CommandConfig<typeof HEALTH>
