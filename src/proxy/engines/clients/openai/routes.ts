import { ProxyError } from '../../../../base/errors.ts'
import type { EventSink, GenerationEvent } from '../../../../protocol/canonical/events.ts'
import { getEffort, parseEffortRejection } from '../../../../protocol/canonical/reasoning-effort.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineConnection } from '../wire/connection.ts'
import type { EngineResponse } from '../wire/engine-response.ts'
import { readCompletion } from '../wire/generation.ts'
import { getRoute, serializeBody } from '../wire/request.ts'
import { CapabilityNegotiation } from './capability-negotiation.ts'
import { buildDetailsBody, buildOpenaiBody, getRequestLevels } from './request.ts'

interface RouteResponse {
  response: EngineResponse
  /**
   * Callbacks, at most one of which is called: `onAccepted` after the first event, `onRejected` if the first event is a
   * rejection.
   */
  onAccepted?(): void
  onRejected?(): void
}

/**
 * The routes of OpenAI's API on a server of unknown kind or version, whose capabilities are learned from its responses.
 */
export class OpenaiRoutes {
  readonly #connection: EngineConnection
  readonly #negotiation = new CapabilityNegotiation()
  #wasUnreachable = false

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** Serves a request as `EngineClient.generate` does, except in token mode. */
  async generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const detailed = request.record && (await this.#sendForDetails(request, signal))
    const { response, onAccepted, onRejected } = detailed
      ? { response: detailed }
      : await this.#send(request, signal)
    let isServed = false
    const write = (batch: readonly GenerationEvent[]) => {
      if (!isServed) onAccepted?.()
      isServed = true
      return sink.write(batch)
    }
    try {
      await readCompletion(this.#connection, request, response, { write })
    } catch (thrown) {
      // Engines validate some fields only after a stream has begun: its first event is then the rejection.
      if (!isServed && isMalformed(thrown) && !rejectsEffort(thrown, request)) onRejected?.()
      throw thrown
    }
  }

  /**
   * Sends a request for token data as well. If the server rejects it, the caller sends the request without token data,
   * so that the turn is recorded nevertheless.
   * @returns undefined if the server rejected the request
   */
  async #sendForDetails(
    request: GenerationRequest,
    signal: AbortSignal,
  ): Promise<EngineResponse | undefined> {
    try {
      const json = serializeBody(buildDetailsBody(request), request)
      return await this.#connection.sendRequest(getRoute(request), signal, json, request)
    } catch (thrown) {
      if (isMalformed(thrown) && !rejectsEffort(thrown, request)) return undefined
      throw thrown
    }
  }

  /** The reason why turns of this server are inexact; undefined if they are exact. */
  get warning(): string | undefined {
    return this.#negotiation.warning ?? this.#connection.missingPromptIdCounter.warning
  }

  /**
   * Runs a health check. The first success after a failure discards the learned capabilities.
   * @throws errors of `check`
   */
  async runHealthCheck<T>(check: () => Promise<T>): Promise<T> {
    try {
      const health = await check()
      if (this.#wasUnreachable) this.#negotiation.forget()
      this.#wasUnreachable = false
      return health
    } catch (thrown) {
      this.#wasUnreachable = true
      throw thrown
    }
  }

  /**
   * Tries the levels of the plan in order until one is not rejected as malformed (400, 422). An invalid request of an
   * agent is rejected at every level, from which nothing is learned.
   */
  async #send(request: GenerationRequest, signal: AbortSignal): Promise<RouteResponse> {
    const key = JSON.stringify([request.kind, request.body.model, request.stream])
    const plan = this.#negotiation.createPlan(key, getRequestLevels(request))
    let rejection: unknown
    for (const level of plan.levels) {
      try {
        const json = serializeBody(buildOpenaiBody(request, level), request)
        const response = await this.#connection.sendRequest(getRoute(request), signal, json, request)
        return {
          response,
          onAccepted: () => this.#negotiation.reportAccepted(key, plan, level),
          onRejected: () => this.#negotiation.reportRejected(key),
        }
      } catch (thrown) {
        if (!isMalformed(thrown) || rejectsEffort(thrown, request)) throw thrown
        rejection = thrown
      }
    }
    this.#negotiation.reportRejected(key)
    throw rejection
  }
}

function isMalformed(thrown: unknown): boolean {
  return thrown instanceof ProxyError && (thrown.status === 400 || thrown.status === 422)
}

/**
 * Returns whether the server rejects the request's effort. A lower level would not help; the backend retries with
 * another effort.
 */
function rejectsEffort(thrown: unknown, { body }: GenerationRequest): boolean {
  return parseEffortRejection((thrown as ProxyError).message, getEffort(body)) !== undefined
}
