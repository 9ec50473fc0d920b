/** Options of the command that verifies recorded turns with an engine. */
import { addFlagGroup, type CommandConfig, type CommandSpec, groupOptions } from '../option.ts'
import { sessionSource } from './sessions.ts'
import { engineApiKey, engineKind, json } from './shared.ts'

export const VERIFY = {
  name: 'verify',
  summary:
    'Compare recorded logprobs with those that an engine computes now for the same tokens; exit 0: the same, ' +
    '3: different, 4: no result',
  options: {
    ...sessionSource,
    ...groupOptions('Engine', {
      engineUrl: {
        flag: 'engine-url',
        type: 'url',
        flagOnly: true,
        help: 'Base URL of the engine, vLLM or SGLang; default: the embedded engine',
      },
      engineKind: { ...engineKind, help: 'API of the engine; auto to detect it' },
      engineApiKey,
      model: {
        flag: 'model',
        type: 'text',
        flagOnly: true,
        help: "Model or adapter to request, instead of each turn's own",
      },
    }),
    ...addFlagGroup('Turns', {
      limit: {
        flag: 'limit',
        type: 'integer',
        min: '1',
        default: '200',
        help: 'Compare at most this many turns, newest sessions first',
      },
      anyWeights: {
        flag: 'any-weights',
        type: 'boolean',
        default: 'false',
        help: 'Also compare turns that were sampled with other weights than the engine has now',
      },
    }),
    ...addFlagGroup('Comparison', {
      logprobsOf: {
        flag: 'logprobs',
        type: 'enum',
        values: ['auto', 'raw', 'temperature', 'mask'],
        default: 'auto',
        help:
          'Distribution of the recorded logprobs: raw, before temperature; temperature, after it; mask, after it and over the ' +
          "recorded sampling mask; auto, by the engine's default",
      },
      meanTolerance: {
        flag: 'mean-tolerance',
        type: 'number',
        min: '0',
        default: '0.05',
        help: "Tolerance of the mean difference of a turn's logprobs; noise of GPUs is about 0.01",
      },
      tokenTolerance: {
        flag: 'token-tolerance',
        type: 'number',
        min: '0',
        default: '1',
        help: "Tolerance of the difference of one token's logprob",
      },
      alternatives: {
        flag: 'alternatives',
        type: 'integer',
        min: '1',
        default: '20',
        help:
          'Number of most probable tokens to request if temperature matters: more give a closer comparison; ' +
          'vLLM allows its --max-logprobs',
      },
      greedy: {
        flag: 'greedy',
        type: 'boolean',
        default: 'false',
        help: 'Also sample turns of temperature 0 again; the tokens must be the same',
      },
    }),
    json: { ...json, help: 'Print one JSON object with all turns instead of text' },
  },
} as const satisfies CommandSpec

export type VerifyConfig = CommandConfig<typeof VERIFY>
