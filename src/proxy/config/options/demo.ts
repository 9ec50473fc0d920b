/** Options of the demo. */
import { addFlagGroup, type CommandConfig, type CommandSpec } from '../option.ts'
import { logLevel } from './shared.ts'

export const DEMO = {
  name: 'demo',
  summary: 'Show the whole system on this machine: relay mode, a worker, agents, trajectories, rewards',
  options: {
    ...addFlagGroup('Demo', {
      rollouts: {
        flag: 'rollouts',
        type: 'integer',
        min: '1',
        max: '1000',
        default: '8',
        help: 'Number of rollouts of the calculator agent',
      },
      concurrency: {
        flag: 'concurrency',
        type: 'integer',
        min: '1',
        max: '64',
        default: '4',
        help: 'Rollouts at a time',
      },
      db: {
        flag: 'db',
        type: 'path',
        default: './llm-proxy-demo.db',
        help: 'Database file for the sessions',
      },
    }),
    logLevel: { ...logLevel, default: 'error' },
  },
} as const satisfies CommandSpec

export type DemoConfig = CommandConfig<typeof DEMO>
