import type { ServeConfig } from './options/serve.ts'
import type { WorkerConfig } from './options/worker.ts'

/**
 * Returns the note that the embedded engine serves because no engine was configured. It appears in the log, in
 * `/health` and in each session.
 */
export function getFallbackNote({ tokenizer = 'embedded' }: { tokenizer?: string | undefined } = {}): string {
  const beyond = tokenizer === 'embedded' ? '' : `, and rejects prompts that were tokenized with ${tokenizer}`
  return `No engine was named: the small embedded model serves requests${beyond}. Name one with --engine-url.`
}

/** The note in `/health` of a proxy in local mode without a healthy engine. */
export const NO_ENGINE_NOTE =
  'No engine is healthy: requests wait for one, and fail after --queue-wait. Check the engines, or register one with ' +
  'POST /admin/workers. The embedded engine serves no requests after another engine was registered.'

/** Returns whether the embedded engine serves requests because no engine was configured. */
export function usesFallbackEngine(config: ServeConfig): boolean {
  return config.mode === 'local' && namesNoEngine(config) && !config.awaitEngines
}

export function namesNoEngine({ engineUrls, engineKind }: ServeConfig | WorkerConfig): boolean {
  return engineUrls.length === 0 && engineKind === 'auto'
}

/**
 * Returns notes about risks of the configuration: who has access, which engine serves, how long data is stored, and
 * whether nodes reach each other.
 */
export function listNotes(config: ServeConfig): string[] {
  const { host, db, adminKeys, agentKeySecrets, tlsCert, trustedProxies } = config
  const nodeHost = config.nodeUrl === undefined ? host : getHost(config.nodeUrl)
  const notes: [applies: boolean, note: string][] = [
    [
      isOpenDoor(config),
      `Every client that reaches ${host} can read, change and delete all sessions: there is no --admin-key.`,
    ],
    [
      adminKeys.length > 0 && agentKeySecrets.length === 0,
      'Agents have no keys of their own: without --agent-key-secret LLM requests need an admin key.',
    ],
    [
      adminKeys.length > 0 && !isLoopback(host) && tlsCert === undefined && trustedProxies.length === 0,
      'Keys and prompts cross the network in plain HTTP: give --tls-cert and --tls-key, or name the ingress that has TLS with ' +
        '--trusted-proxy.',
    ],
    [usesFallbackEngine(config), getFallbackNote(config)],
    [
      /^postgres(ql)?:/i.test(db) && isLoopback(nodeHost),
      `Nodes on other machines do not reach this one at ${nodeHost}: if several share the database, give --host 0.0.0.0 ` +
        'and keys, or --node-url.',
    ],
    [db === 'memory', 'Sessions end with this process: their database is removed with it.'],
  ]
  return notes.filter(([applies]) => applies).map(([, note]) => note)
}

/** Returns whether clients on other machines have full access. */
export function isOpenDoor({ host, adminKeys }: ServeConfig): boolean {
  return adminKeys.length === 0 && !isLoopback(host)
}

/** Returns the host of a URL, an IPv6 address without brackets. */
function getHost(url: string): string {
  return new URL(url).hostname.replace(/^\[|\]$/g, '')
}

/** Returns whether only this machine reaches a server on this host. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host)
}
