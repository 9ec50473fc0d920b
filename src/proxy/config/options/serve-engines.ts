/** Options of engines and workers, and of dispatch to them. */
import { groupOptions } from '../option.ts'
import { engineApiKey, engineKind, engineSessionHeader, maxConcurrency } from './shared.ts'

export const engines = groupOptions('Engines', {
  engineUrls: {
    flag: 'engine-url',
    type: 'url',
    repeatable: true,
    help: 'Base URL of an engine for local mode; may be given several times',
  },
  awaitEngines: {
    flag: 'await-engines',
    hidden: true,
    type: 'boolean',
    default: 'false',
    help: 'Start without an engine: requests wait until one is registered with POST /admin/workers',
  },
  engineKind,
  engineApiKey,
  engineSessionHeader: { ...engineSessionHeader, hidden: true },
  model: {
    flag: 'model',
    type: 'text',
    help: 'Model name to send to engines, in place of the one that the agent requests',
  },
  playbook: {
    flag: 'playbook',
    hidden: true,
    type: 'path',
    help: 'JSON file of scripted completions for the embedded engine',
  },
  healthIntervalMs: {
    flag: 'health-interval',
    hidden: true,
    type: 'duration',
    min: '100ms',
    default: '5s',
    help: 'Time between health checks of an engine',
  },
})

export const tokenMode = groupOptions('Token mode', {
  tokenizer: {
    flag: 'tokenizer',
    type: 'text',
    help:
      "Enables token mode: the proxy renders and tokenizes prompts itself. The model's directory, its " +
      'tokenizer.json, its id on the Hugging Face hub, or embedded',
  },
  toolParser: {
    flag: 'tool-parser',
    type: 'text',
    default: 'auto',
    help: "Format of reasoning and tool calls, by vLLM's names; auto uses the model's response template, or derives it from the chat template",
  },
  promptFormat: {
    flag: 'prompt-format',
    hidden: true,
    type: 'enum',
    values: ['auto', 'template', 'harmony'],
    default: 'auto',
    help: "Format of prompts: template, the model's chat template; harmony, OpenAI's format; auto, harmony only for gpt-oss",
  },
  promptEncoder: {
    flag: 'prompt-encoder',
    hidden: true,
    type: 'text',
    help:
      "Prompt encoder, by its path in the model's folder (encoding/encoding_dsv4.py, tekken.json); default: the " +
      'only one, if the model has no chat template',
  },
  trustModelCode: {
    flag: 'trust-model-code',
    hidden: true,
    type: 'text',
    help:
      "Allows the model's prompt encoder to run, in a confined process: the SHA-256 of its code, or the path of a " +
      'file with that code',
  },
  tokenizerBackend: {
    flag: 'tokenizer-backend',
    hidden: true,
    type: 'enum',
    values: ['auto', 'huggingface'],
    default: 'auto',
    help:
      "Tokenizer library: huggingface, Hugging Face's; auto, fastokens if it was built, as long as it returns " +
      'the same ids',
  },
  specialTokensInText: {
    flag: 'special-tokens-in-text',
    hidden: true,
    type: 'enum',
    values: ['allow', 'reject'],
    default: 'allow',
    help:
      'Requests with the text of a special token in a message, which the model would read as that token: allow ' +
      'annotates the turn, reject responds with 400',
  },
  contextLength: {
    flag: 'context-length',
    type: 'integer',
    min: '1',
    help: "Maximum number of tokens of prompt and completion together; default: from the model's config.json",
  },
})

export const scheduling = groupOptions('Scheduling', {
  maxConcurrency: {
    ...maxConcurrency,
    help: 'Maximum number of concurrent requests per engine; a worker of protocol version 2 reports its own number',
  },
  queueLimit: {
    flag: 'queue-limit',
    hidden: true,
    type: 'integer',
    default: '8192',
    help: 'Requests that may wait for a free engine or worker; more are rejected with 503',
  },
  queueWaitMs: {
    flag: 'queue-wait',
    hidden: true,
    type: 'duration',
    default: '30s',
    help: 'How long a request waits if no engine or worker can serve it',
  },
  pauseLimitMs: {
    flag: 'pause-limit',
    hidden: true,
    type: 'duration',
    default: '1h',
    help:
      'How long POST /admin/pause may defer requests; then they are rejected with 503 until POST ' +
      '/admin/resume. 0: no limit',
  },
  agentCallLimit: {
    flag: 'agent-call-limit',
    hidden: true,
    type: 'integer',
    min: '1',
    default: '128',
    help: 'Requests that an agent with a key may have in flight; more are rejected with 429',
  },
  choiceLimit: {
    flag: 'choice-limit',
    hidden: true,
    type: 'integer',
    min: '1',
    default: '128',
    help:
      'Maximum number of completions per request (n); more are rejected with 400. Each counts as one request of ' +
      'the agent',
  },
  retryGraceMs: {
    flag: 'retry-grace',
    hidden: true,
    type: 'duration',
    default: '10s',
    help:
      'How long a request continues after its agent disconnected, so that a retry by its SDK ' +
      'joins it. 0: cancelled immediately',
  },
})

export const drift = groupOptions('Drift', {
  verifyShare: {
    flag: 'verify-share',
    type: 'number',
    min: '0',
    max: '1',
    default: '0',
    help: 'Fraction of turns (such as 0.01) to re-score on an idle engine',
  },
  verifyEngineUrl: {
    flag: 'verify-engine-url',
    hidden: true,
    type: 'url',
    help: 'Engine that re-scores turns; default: the one that sampled them, in local mode',
  },
})

export const relayMode = groupOptions('Relay mode', {
  relayTimeoutMs: {
    flag: 'relay-timeout',
    type: 'duration',
    min: '1ms',
    default: '300s',
    env: ['RELAY_TIMEOUT'],
    help: 'Idle timeout of a relayed request (total timeout for version-1 workers)',
  },
  workerGraceMs: {
    flag: 'worker-grace',
    hidden: true,
    type: 'duration',
    default: '30s',
    help: 'How long the requests of a disconnected worker wait for it to reconnect',
  },
  heartbeatIntervalMs: {
    flag: 'heartbeat-interval',
    hidden: true,
    type: 'duration',
    min: '100ms',
    default: '10s',
    help: 'Time between pings to workers; a worker that is silent for three of them counts as lost',
  },
})
