import { ProxyError } from '../../../../base/errors.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import { getEffort, parseEffortRejection } from '../../../../protocol/canonical/reasoning-effort.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineConnection, EngineResponse } from '../wire/connection.ts'
import { readAnswer } from '../wire/generation.ts'
import { bodyJson, routeOf } from '../wire/request.ts'
import { CapabilityNegotiation } from './capability-negotiation.ts'
import { detailsBody, getRequestLevels, openaiBody } from './request.ts'

interface RouteResponse {
  response: EngineResponse
  /** To be called once: its first event has come, or it was refused with its first event. */
  served?(): void
  refused?(): void
}

/** The routes of OpenAI's API on a server of unknown make or version: what it can tell is found out by asking. */
export class OpenaiRoutes {
  readonly #connection: EngineConnection
  readonly #learnt = new CapabilityNegotiation()
  #wasAway = false

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** As `EngineClient.generate`, of calls that are not in token mode. */
  async *generate(request: GenerationRequest, signal: AbortSignal): GenerationStream {
    const detailed = request.record && (await this.#askForDetails(request, signal))
    const { response, served, refused } = detailed ? { response: detailed } : await this.#ask(request, signal)
    let isServed = false
    try {
      for await (const batch of readAnswer(this.#connection, request, response, signal)) {
        if (!isServed) served?.()
        isServed = true
        yield batch
      }
    } catch (thrown) {
      // A stream has begun before the engine looks at some of what was asked: its first event is the refusal.
      if (!isServed && isMalformed(thrown) && !rejectsEffort(thrown, request)) refused?.()
      throw thrown
    }
  }

  /**
   * A server that refuses to be asked for details is asked without: its turns are on record all the same.
   * @returns undefined when it refused
   */
  async #askForDetails(request: GenerationRequest, signal: AbortSignal): Promise<EngineResponse | undefined> {
    try {
      const json = bodyJson(detailsBody(request), request)
      return await this.#connection.request(routeOf(request), signal, json, request)
    } catch (thrown) {
      if (isMalformed(thrown) && !rejectsEffort(thrown, request)) return undefined
      throw thrown
    }
  }

  /** Why turns that this server samples are not exact. */
  get warning(): string | undefined {
    return this.#learnt.shortage ?? this.#connection.promptReports.warning
  }

  /** Makes a health check; once one has failed, what was learnt before is forgotten. @throws as `check` */
  async watch<T>(check: () => Promise<T>): Promise<T> {
    try {
      const health = await check()
      if (this.#wasAway) this.#learnt.forget()
      this.#wasAway = false
      return health
    } catch (thrown) {
      this.#wasAway = true
      throw thrown
    }
  }

  /**
   * Asks for all there is first, and for less when that is refused as malformed (400, 422). What the agent itself did wrong
   * is refused at every step, and teaches nothing.
   */
  async #ask(request: GenerationRequest, signal: AbortSignal): Promise<RouteResponse> {
    const key = JSON.stringify([request.kind, request.body.model, request.stream])
    const plan = this.#learnt.planFor(key, getRequestLevels(request))
    let refusal: unknown
    for (const ask of plan.asks) {
      try {
        const json = bodyJson(openaiBody(request, ask), request)
        const response = await this.#connection.request(routeOf(request), signal, json, request)
        return {
          response,
          served: () => this.#learnt.accepted(key, plan, ask),
          refused: () => this.#learnt.refused(key),
        }
      } catch (thrown) {
        if (!isMalformed(thrown) || rejectsEffort(thrown, request)) throw thrown
        refusal = thrown
      }
    }
    this.#learnt.refused(key)
    throw refusal
  }
}

function isMalformed(thrown: unknown): boolean {
  return thrown instanceof ProxyError && (thrown.status === 400 || thrown.status === 422)
}

/** Whether the server rejects the request's effort. A smaller request does not help then: the backend changes the effort. */
function rejectsEffort(thrown: unknown, { body }: GenerationRequest): boolean {
  return parseEffortRejection((thrown as ProxyError).message, getEffort(body)) !== undefined
}
