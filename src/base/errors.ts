/**
 * The error hierarchy. An error is created where its cause is known, and converted once per edge: to a dialect's format
 * for agents and trainers (`proxy/http/transport/errors.ts`), or to text for the terminal (`cli/fail.ts`).
 */

/**
 * Stable codes, each with its default HTTP status and the level at which it is logged. `docs/errors.md` lists the same
 * codes; a test compares both.
 */
export const ERROR_CATALOGUE = {
  invalid_json: { status: 400, log: 'info' },
  invalid_request: { status: 400, log: 'info' },
  unsupported: { status: 400, log: 'info' },
  unauthorized: { status: 401, log: 'info' },
  forbidden: { status: 403, log: 'info' },
  route_not_found: { status: 404, log: 'info' },
  session_not_found: { status: 404, log: 'info' },
  response_not_found: { status: 404, log: 'info' },
  trace_not_found: { status: 404, log: 'info' },
  turn_not_found: { status: 404, log: 'info' },
  row_not_found: { status: 404, log: 'info' },
  rollout_not_found: { status: 404, log: 'info' },
  rollout_cancelled: { status: 409, log: 'info' },
  consumer_not_found: { status: 404, log: 'info' },
  consumer_exists: { status: 409, log: 'info' },
  worker_not_found: { status: 404, log: 'info' },
  wrong_mode: { status: 409, log: 'info' },
  not_drained: { status: 409, log: 'info' },
  proxy_away: { status: 503, log: 'warn' },
  session_moved: { status: 503, log: 'info' },
  session_ended: { status: 409, log: 'info' },
  limit_reached: { status: 400, log: 'info' },
  session_exists: { status: 409, log: 'info' },
  body_too_large: { status: 413, log: 'info' },
  too_many_calls: { status: 429, log: 'info' },
  agent_gone: { status: 499, log: 'info' },
  agent_too_slow: { status: 499, log: 'info' },
  turn_cancelled: { status: 409, log: 'info' },
  context_length_exceeded: { status: 400, log: 'info' },
  engine_rejected: { status: 400, log: 'info' },
  engine_failed: { status: 502, log: 'warn' },
  engine_aborted: { status: 502, log: 'warn' },
  engine_lost: { status: 502, log: 'warn' },
  engine_unreachable: { status: 503, log: 'warn' },
  engine_timeout: { status: 504, log: 'warn' },
  no_worker: { status: 503, log: 'warn' },
  worker_lost: { status: 502, log: 'warn' },
  policy_not_served: { status: 503, log: 'warn' },
  queue_full: { status: 503, log: 'warn' },
  paused: { status: 503, log: 'warn' },
  shutting_down: { status: 503, log: 'info' },
  store_failed: { status: 503, log: 'error' },
  data_damaged: { status: 500, log: 'error' },
  config_invalid: { status: 500, log: 'fatal' },
  start_failed: { status: 500, log: 'fatal' },
  proxy_failed: { status: 502, log: 'error' },
  rollout_server_away: { status: 503, log: 'warn' },
  rollout_server_refused: { status: 500, log: 'error' },
  internal: { status: 500, log: 'error' },
} as const satisfies Record<string, { status: number; log: string }>

export type ErrorCode = keyof typeof ERROR_CATALOGUE

export interface ProxyErrorOptions {
  /** The cause; logged, never sent to an agent. */
  cause?: unknown
  /**
   * Text to log instead of the message, if the message contains text of an engine, a worker or a template, which may
   * quote the prompt.
   */
  logMessage?: string
  /** The path of the invalid request field in the client's notation, such as `messages.0.role`. */
  param?: string
  /** Overrides the catalogue's status with that of an engine (400, 404, 429 …). */
  status?: number
  /** Seconds after which the client should retry; sent as `retry-after`. */
  retryAfterS?: number | undefined
  /** The engine's error body, forwarded to agents that use the engine's dialect. */
  engineBody?: unknown
}

export class ProxyError extends Error {
  override readonly name = 'ProxyError'
  readonly code: ErrorCode
  readonly status: number
  readonly logLevel: 'info' | 'warn' | 'error' | 'fatal'
  readonly param: string | undefined
  readonly retryAfterS: number | undefined
  readonly engineBody: unknown
  /** The only text of this error that may be logged. */
  readonly logMessage: string
  /**
   * Whether the weights changed during the response that this error ended, so that the version of its last tokens is
   * unknown. Set where the change is detected.
   */
  weightsChanged = false

  constructor(code: ErrorCode, message: string, options: ProxyErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.status = options.status ?? ERROR_CATALOGUE[code].status
    this.logLevel = ERROR_CATALOGUE[code].log
    this.param = options.param
    this.retryAfterS = options.retryAfterS
    this.engineBody = options.engineBody
    this.logMessage = options.logMessage ?? message
  }
}

/**
 * Converts any thrown value to a {@link ProxyError}; an unexpected one becomes `internal` with the original as cause.
 */
export function toProxyError(thrown: unknown): ProxyError {
  if (thrown instanceof ProxyError) return thrown
  return new ProxyError('internal', 'llm-proxy failed to handle this request', { cause: thrown })
}

/** Returns the error for a request that no engine can serve. @param param the field's path, as the client wrote it */
export function createUnsupportedError(message: string, param: string): ProxyError {
  return new ProxyError('unsupported', message, { param })
}

/** Returns the error for an invalid request that conforms to its schema. @param param the field's path */
export function createInvalidError(message: string, param: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}
