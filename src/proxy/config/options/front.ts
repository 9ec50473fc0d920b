/** Options of the front of several nodes. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { host, logLevel, shutdownGraceMs } from './shared.ts'

export const FRONT = {
  name: 'front',
  summary: 'Answer trainers for several nodes, like one proxy',
  envPrefix: 'LLM_PROXY_FRONT_',
  options: {
    host,
    port: {
      flag: 'port',
      type: 'port',
      default: '8090',
      group: 'Server',
      help: 'Port to listen on; 0: any free port',
    },
    nodeUrls: {
      flag: 'node-url',
      type: 'url',
      repeatable: true,
      group: 'Nodes',
      help: 'Base URL of a node; given once per node, node 1 first',
    },
    nodeTimeoutMs: {
      flag: 'node-timeout',
      type: 'duration',
      min: '1ms',
      default: '30s',
      group: 'Nodes',
      help: 'How long a node may take for its part of an answer; after that it counts as away',
    },
    shutdownGraceMs,
    logLevel,
  },
} as const satisfies CommandSpec

export type FrontConfig = ConfigOf<typeof FRONT>
