/** Port: who serves, in one list, and the engines that come and go while the proxy runs. */

/** An engine that the proxy calls, or a worker that dialled in; `GET /admin/workers` shows it. */
export interface RegistryEntry {
  id: string
  kind: 'engine' | 'worker'
  /** Where an engine is called, without `/v1`; null for the embedded one, and for a worker. */
  url: string | null
  /** What an engine speaks; null for a worker. */
  engineKind: string | null
  /** The model that whoever registered it said it serves. */
  modelName: string | null
  /** How many calls it gets for each call of an engine of weight 1. */
  weight: number
  /** Of the protocol that a worker speaks; null for an engine. */
  version: 1 | 2 | null
  /** Calls that it serves; by a worker's own count where it tells, which includes other proxies' calls. */
  load: number
  maxConcurrency: number
  models: string[]
  weightVersion: string | null
  healthy: boolean
  /** Why it is not healthy. */
  error: string | null
  draining: boolean
  /** Since when it is in the list; milliseconds since the epoch. */
  sinceMs: number
}

export interface NewEngine {
  /** With or without `/v1` at its end. */
  url: string
  /** A positive integer. */
  weight: number
  modelName: string | null
}

export interface Registry {
  /** In the order in which they came. */
  list(): RegistryEntry[]

  /**
   * Adds an engine and asks it how it is. One that is there already, by its URL, gets the new weight and keeps its id;
   * one that does not answer is added all the same: it may be starting.
   * @throws ProxyError `config_invalid` (a URL that is none), `unsupported` (it cannot serve token mode), `wrong_mode`
   */
  register(engine: NewEngine): Promise<RegistryEntry>

  /**
   * Gives the engine nothing new; it leaves the list when the calls that it serves have ended.
   * @throws ProxyError `worker_not_found`, `wrong_mode`
   */
  remove(id: string): void | Promise<void>
}
