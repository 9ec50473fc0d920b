/** Options of the embedded engine as a server. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { host, logLevel } from './shared.ts'

export const ENGINE = {
  name: 'engine',
  summary: "Serve the embedded engine over HTTP with vLLM's API, for tests",
  envPrefix: 'LLM_PROXY_ENGINE_',
  options: {
    host,
    port: {
      flag: 'port',
      type: 'port',
      default: '8000',
      group: 'Server',
      help: 'Port to listen on; 0: any free port',
    },
    model: {
      flag: 'model',
      type: 'text',
      group: 'Model',
      help: 'Name of the model',
    },
    weightVersion: {
      flag: 'weight-version',
      type: 'text',
      group: 'Model',
      help: 'Weight version that the engine reports',
    },
    contextLength: {
      flag: 'context-length',
      type: 'integer',
      min: '1',
      group: 'Model',
      help: 'Tokens that prompt and completion may have together',
    },
    playbook: {
      flag: 'playbook',
      type: 'path',
      group: 'Model',
      help: 'JSON file of answers for the engine',
    },
    latencyMs: {
      flag: 'latency',
      type: 'duration',
      default: '0',
      group: 'Speed',
      help: 'Time to the first token',
    },
    tokensPerSecond: {
      flag: 'tokens-per-second',
      type: 'number',
      default: '0',
      group: 'Speed',
      help: 'Speed of sampling; 0: no limit',
    },
    logLevel,
  },
} as const satisfies CommandSpec

export type EngineConfig = ConfigOf<typeof ENGINE>
