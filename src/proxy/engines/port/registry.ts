/** Port: the list of all engines and workers, and the registration of engines at run time. */

/** An engine, or a connected worker, as `GET /admin/workers` reports it. */
export interface RegistryEntry {
  id: string
  kind: 'engine' | 'worker'
  /** The base URL of an engine, without `/v1`; null for the embedded engine and for a worker. */
  url: string | null
  /** The API that an engine implements; null for a worker. */
  engineKind: string | null
  /** The model that was declared at registration. */
  modelName: string | null
  /** The number of requests that the engine receives for each request of an engine of weight 1. */
  weight: number
  /** The version of the worker protocol; null for an engine. */
  version: 1 | 2 | null
  /** The number of requests in flight. A worker may report its own count, which includes requests of other proxies. */
  load: number
  maxConcurrency: number
  models: string[]
  weightVersion: string | null
  healthy: boolean
  /** The reason why it is unhealthy. */
  error: string | null
  draining: boolean
  /** The time of registration, in milliseconds since the epoch. */
  sinceMs: number
}

/** The parameters of the registration of an engine. */
export interface EngineRegistration {
  /** The base URL, with or without `/v1`. */
  url: string
  /** A positive integer. */
  weight: number
  modelName: string | null
}

export interface MemberRegistry {
  /** Returns the entries in the order of registration. */
  list(): RegistryEntry[]

  /**
   * Adds an engine and checks its health. An engine whose URL is registered already receives the new weight and keeps
   * its id. An engine that does not respond is added as well: it may be starting.
   * @throws ProxyError `config_invalid` (an invalid URL), `unsupported` (it cannot serve token mode), `wrong_mode`
   */
  register(engine: EngineRegistration): Promise<RegistryEntry>

  /**
   * Drains the engine: it receives no new requests and leaves the list when its running ones have ended.
   * @throws ProxyError `worker_not_found`, `wrong_mode`
   */
  remove(id: string): void | Promise<void>
}
