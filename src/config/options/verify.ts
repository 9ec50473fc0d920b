/** Options of the command that asks an engine for the truth about recorded turns. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import { sessionSource } from './sessions.ts'
import { engineApiKey, engineKind, json } from './shared.ts'

export const VERIFY = {
  name: 'verify',
  summary:
    'Compare recorded logprobs with those that an engine gives the same tokens now; exit 0 if they are the same, 3 if ' +
    'not, 4 if nothing can be said',
  envPrefix: 'LLM_PROXY_',
  options: {
    ...sessionSource,
    engineUrl: {
      flag: 'engine-url',
      type: 'url',
      flagOnly: true,
      group: 'Engine',
      help: 'Base URL of the engine to ask, vLLM or SGLang; without it the embedded engine',
    },
    engineKind: { ...engineKind, group: 'Engine', help: 'What the engine speaks; auto to ask it' },
    engineApiKey: { ...engineApiKey, group: 'Engine' },
    model: {
      flag: 'model',
      type: 'text',
      flagOnly: true,
      group: 'Engine',
      help: "Model or adapter to ask for instead of each turn's own",
    },
    limit: {
      flag: 'limit',
      type: 'integer',
      min: '1',
      default: '200',
      flagOnly: true,
      group: 'Turns',
      help: 'Compare at most this many turns, those of the newest sessions first',
    },
    anyWeights: {
      flag: 'any-weights',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Turns',
      help: 'Compare turns of other weights than the engine has, too; they differ, and the question is how much',
    },
    logprobsOf: {
      flag: 'logprobs',
      type: 'enum',
      values: ['auto', 'raw', 'temperature', 'mask'],
      default: 'auto',
      flagOnly: true,
      group: 'Comparison',
      help:
        'What was recorded: raw, before temperature; temperature, after it; mask, after it and among the tokens of the ' +
        'sampling mask on record; auto: as SGLang and others do by default',
    },
    meanTolerance: {
      flag: 'mean-tolerance',
      type: 'number',
      min: '0',
      default: '0.05',
      flagOnly: true,
      group: 'Comparison',
      help: "By how much the logprobs of a turn may differ in the mean; GPUs' own noise is about 0.01",
    },
    tokenTolerance: {
      flag: 'token-tolerance',
      type: 'number',
      min: '0',
      default: '1',
      flagOnly: true,
      group: 'Comparison',
      help: 'By how much the logprob of one token may differ',
    },
    alternatives: {
      flag: 'alternatives',
      type: 'integer',
      min: '1',
      default: '20',
      flagOnly: true,
      group: 'Comparison',
      help:
        'Most probable tokens to ask for where temperature matters: the more, the closer the comparison; vLLM gives ' +
        'as many as its --max-logprobs',
    },
    greedy: {
      flag: 'greedy',
      type: 'boolean',
      default: 'false',
      flagOnly: true,
      group: 'Comparison',
      help: 'Sample turns of temperature 0 again as well; the tokens must be the same',
    },
    json: { ...json, help: 'Print one JSON object with every turn instead of text' },
  },
} as const satisfies CommandSpec

export type VerifyConfig = ConfigOf<typeof VERIFY>
