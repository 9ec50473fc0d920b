/** The constraints between options of `serve`. An option that would have no effect is rejected, not ignored. */
import { ProxyError } from '../../base/errors.ts'
import { isOpenDoor } from './notes.ts'
import type { ServeConfig } from './options/serve.ts'

/** Checks the configuration. @throws ProxyError `config_invalid` */
export function checkServeConfig(config: ServeConfig): void {
  const hasEngines = config.engineUrls.length > 0
  if (config.mode === 'relay' && (hasEngines || config.engineKind === 'embedded')) {
    reject('relay mode connects to no engine: give engine-url to the workers, or use --mode local')
  }
  if (config.engineKind === 'embedded' && hasEngines) {
    reject('the embedded engine has no URL: leave out engine-url, or give --engine-kind auto')
  }
  if (config.awaitEngines && (config.mode === 'relay' || hasEngines || config.engineKind === 'embedded')) {
    reject(
      'await-engines is for local mode without an engine: omit it, or omit engine-url and the embedded engine',
    )
  }
  if (config.playbook !== undefined && (config.mode === 'relay' || hasEngines || config.awaitEngines)) {
    reject('a playbook is for the embedded engine: leave out playbook, or use local mode without engine-url')
  }
  if (
    config.tokenizer === undefined &&
    (config.toolParser !== 'auto' ||
      config.promptFormat !== 'auto' ||
      config.promptEncoder !== undefined ||
      config.trustModelCode !== undefined ||
      config.tokenizerBackend !== 'auto' ||
      config.specialTokensInText !== 'allow' ||
      config.contextLength !== undefined)
  ) {
    reject(
      'tool-parser, prompt-format, prompt-encoder, trust-model-code, tokenizer-backend, special-tokens-in-text and ' +
        'context-length are for token mode: give tokenizer as well, or leave them out',
    )
  }
  if (config.promptEncoder !== undefined && config.promptFormat !== 'auto') {
    reject('prompt-format and prompt-encoder both determine how prompts are written: omit one of them')
  }
  if ((config.tlsCert === undefined) !== (config.tlsKey === undefined)) {
    reject('--tls-cert and --tls-key must be given together')
  }
  if (config.verifyEngineUrl !== undefined && config.verifyShare === 0) {
    reject('verify-engine-url is for the turns of verify-share: give that as well, or leave it out')
  }
  if (config.verifyShare > 0 && config.mode === 'relay' && config.verifyEngineUrl === undefined) {
    reject('verify-share needs verify-engine-url in relay mode, where the proxy reaches no engine itself')
  }
  checkKeys(config)
  if (isOpenDoor(config) && !config.open) {
    reject(
      `refusing to listen on ${config.host} without a key: anyone who can reach it could read, change or delete every ` +
        'session. Set --admin-key, use --host 127.0.0.1, or pass --open',
    )
  }
}

/**
 * Checks keys. If keys are required, a scope without a key would be inaccessible, and two scopes with the same key
 * would not be separate.
 */
function checkKeys({
  mode,
  adminKeys,
  workerKeys,
  agentKeySecrets,
  viewKeys,
  metricsKeys,
}: ServeConfig): void {
  const isClosed = adminKeys.length > 0
  const others = { workerKeys, agentKeySecrets, viewKeys, metricsKeys }
  if (!isClosed && Object.values(others).some((keys) => keys.length > 0)) {
    reject(
      'worker-key, agent-key-secret, view-key and metrics-key need an admin-key: without one no client could end a session',
    )
  }
  if (isClosed && mode === 'relay' && workerKeys.length === 0) {
    reject('relay mode with an admin-key needs a worker-key: without one no worker could connect')
  }
  const all = [adminKeys, ...Object.values(others)].flatMap((keys) => [...new Set(keys)])
  if (new Set(all).size < all.length) {
    reject(
      'admin-key, worker-key, agent-key-secret, view-key and metrics-key must differ, because each grants other access',
    )
  }
}

function reject(message: string): never {
  throw new ProxyError('config_invalid', message)
}
