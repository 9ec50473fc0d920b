/** Options of the command that container health checks run. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { proxyUrl, tlsCa } from './shared.ts'

export const HEALTH = {
  name: 'health',
  summary: 'Check a running proxy; exit 0 if it is healthy, 1 if not (for container health checks)',
  envPrefix: 'LLM_PROXY_',
  options: {
    url: proxyUrl,
    tlsCa: { ...tlsCa, group: 'Proxy' },
    timeoutMs: {
      flag: 'timeout',
      type: 'duration',
      min: '1ms',
      default: '5s',
      flagOnly: true,
      group: 'Proxy',
      help: 'How long the answer may take',
    },
  },
} as const satisfies CommandSpec

export type HealthConfig = ConfigOf<typeof HEALTH>
