/** Options of the embedded engine as a server. */
import { type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { host, logFormat, logLevel, port } from './shared.ts'

export const ENGINE = {
  name: 'engine',
  summary: "Serve the embedded engine over HTTP with vLLM's API, for tests",
  envPrefix: 'LLM_PROXY_ENGINE_',
  options: {
    ...groupOptions('Server', { host, port: { ...port, default: '8000' } }),
    ...groupOptions('Model', {
      model: {
        flag: 'model',
        type: 'text',
        help: 'Name of the model',
      },
      weightVersion: {
        flag: 'weight-version',
        type: 'text',
        help: 'Weight version that the engine reports',
      },
      contextLength: {
        flag: 'context-length',
        type: 'integer',
        min: '1',
        help: 'Maximum number of tokens of prompt and completion together',
      },
      playbook: {
        flag: 'playbook',
        type: 'path',
        help: 'JSON file of scripted completions for the engine',
      },
    }),
    ...groupOptions('Speed', {
      latencyMs: {
        flag: 'latency',
        type: 'duration',
        default: '0',
        help: 'Time to the first token',
      },
      tokensPerSecond: {
        flag: 'tokens-per-second',
        type: 'number',
        default: '0',
        help: 'Speed of sampling; 0: no limit',
      },
    }),
    logLevel,
    logFormat,
  },
} as const satisfies CommandSpec

export type EngineConfig = CommandConfig<typeof ENGINE>
