/**
 * Continues a response after its engine request was cut: further engine requests sample the rest, and all of them feed
 * one sink. The sink receives one start, the tokens of all parts, and one end.
 */
import { type ErrorCode, ProxyError } from '../../../base/errors.ts'
import type {
  EventSink,
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
  GenerationStart,
} from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { EngineRequest } from '../../../protocol/schema/row.ts'
import type { VersionSpan } from '../../../protocol/token-data/token-data.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../protocol/token-ids/token-ids.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type {
  ContinuationPlanner,
  ResponseEnd,
  ResponseRemainder,
  SplitStopFinder,
} from '../prompts/continuation.ts'
import { TokenDataConcatenation, truncateDelta } from './token-data-concatenation.ts'

/** The dependencies of a {@link ResponseContinuation}. */
interface ResponseContinuationOptions {
  readonly backend: Pick<Backend, 'generate'>
  /** The first engine request. */
  readonly request: GenerationRequest
  /** Plans the rest of the response. undefined: it cannot be continued, because the engine renders its prompt. */
  readonly continuation: ContinuationPlanner | undefined
  /** Returns the weight version that a trainer has announced, for engines that report none. */
  announcedVersion(): string | undefined
}

/**
 * The maximum number of engine requests of a response. A weight update cuts a response only once, so that more cuts
 * indicate a fault.
 */
const MAX_ENGINE_REQUESTS = 8

/** The errors after which a response continues. The tokens that arrived before them are complete. */
const CUTS: ReadonlySet<ErrorCode> = new Set([
  'engine_aborted',
  'engine_lost',
  'worker_lost',
  'shutting_down',
])

/** The errors of an engine or a worker that terminated. */
const LOSSES: ReadonlySet<ErrorCode> = new Set(['engine_lost', 'worker_lost'])

/** The error that the sink throws to stop the backend, which then cancels the engine request. */
const STOPPED = new Error('a stop string that began before the cut is complete')

/** An engine request of the response, and what it has reported. */
interface ResponsePart {
  readonly request: GenerationRequest
  /** The number of tokens of the earlier parts. */
  readonly offset: number
  /** Finds stop strings that a cut has split; undefined in a part without earlier tokens. */
  readonly stops: SplitStopFinder | undefined
  start: GenerationStart | undefined
  end: GenerationEnd | undefined
  /** The error that cut the request. */
  cut: ProxyError | undefined
  /** The announced weight version at the time of dispatch. */
  announcedVersion: string | undefined
}

/** A response and its engine requests. */
export class ResponseContinuation {
  readonly #options: ResponseContinuationOptions
  readonly #sampled: number[] = []
  readonly #data: TokenDataConcatenation
  /** The records of the ended parts. */
  readonly #ended: EngineRequest[] = []
  #part: ResponsePart
  #sink: EventSink | undefined
  /** Whether the sink has received the start. */
  #isStarted = false
  #hasText = false
  #accepted: Promise<void> | undefined

  constructor(options: ResponseContinuationOptions) {
    this.#options = options
    const { request } = options
    this.#data = new TokenDataConcatenation(getSentPrompt(request)?.length ?? 0)
    this.#part = this.#createPart(request)
  }

  /** The engine requests so far, in order; undefined: there was only one. */
  get engineRequests(): readonly EngineRequest[] | undefined {
    return this.#ended.length > 1 ? this.#ended : undefined
  }

  /**
   * Pushes the response to `sink`.
   * @throws ProxyError as {@link Backend.generate}. If the response was cut and cannot be continued, the message
   *   includes the reason.
   */
  async pushTo(sink: EventSink, signal: AbortSignal): Promise<void> {
    this.#sink = sink
    for (;;) {
      const cut = await this.#runPart(signal)
      if (cut === undefined) return
      const rest = this.#planRest(cut)
      if ('finish' in rest) return await this.#finish(rest.finish)
      this.#options.request.log?.logContinuation(cut, this.#sampled.length)
      this.#data.startRequest(this.#sampled.length)
      // Without earlier tokens, no stop string is split, and the engine finds all of them.
      const stops = this.#sampled.length > 0 ? rest.stops : undefined
      this.#part = this.#createPart(this.#toRequest(rest.request), stops)
    }
  }

  /** Runs the current engine request to its end. @returns the error that cut it; undefined: the response is complete */
  async #runPart(signal: AbortSignal): Promise<ProxyError | undefined> {
    const { backend, announcedVersion } = this.#options
    const part = this.#part
    const onDispatched = () => {
      part.announcedVersion = announcedVersion()
      part.request.onDispatched?.()
    }
    const continuesAfter = this.#findObstacle() === undefined ? CUTS : undefined
    try {
      await backend.generate(
        { ...part.request, onDispatched, continuesAfter },
        { write: (events) => this.#write(events) },
        signal,
      )
      this.#record(part.end?.finishReason ?? 'engine_lost')
      return undefined
    } catch (thrown) {
      if (thrown === STOPPED) return undefined
      part.cut = thrown instanceof ProxyError ? thrown : undefined
      const code = part.cut?.code ?? 'internal'
      this.#record(code === 'engine_aborted' ? 'abort' : code)
      if (signal.aborted || !(thrown instanceof ProxyError) || !CUTS.has(code)) throw thrown
      // The backend has already retried a request that engines lose before its first event. It may cause their failure.
      if (LOSSES.has(code) && part.start === undefined) throw thrown
      await this.#accepted
      return thrown
    }
  }

  #planRest(cut: ProxyError): ResponseRemainder {
    const why = this.#findObstacle()
    if (why !== undefined) throw withReason(cut, why)
    return this.#options.continuation!.plan(this.#sampled)
  }

  #findObstacle(): string | undefined {
    const { continuation } = this.#options
    if (continuation === undefined) return 'it is in chat mode'
    if (continuation.obstacle !== undefined) return continuation.obstacle
    const lacksIds = this.#hasText && this.#sampled.length === 0
    if (lacksIds || !this.#sampled.every(isTokenId)) return 'the engine did not report its token ids'
    if (this.#ended.length >= MAX_ENGINE_REQUESTS) return `it had ${MAX_ENGINE_REQUESTS} engine requests`
    return undefined
  }

  #createPart(request: GenerationRequest, stops?: SplitStopFinder): ResponsePart {
    const offset = this.#sampled.length
    const unknown = { start: undefined, end: undefined, cut: undefined, announcedVersion: undefined }
    return { request, offset, stops, ...unknown }
  }

  #toRequest(rest: GenerationRequest): GenerationRequest {
    const sampledBy = this.#ended.findLast(({ weight_version: version }) => version !== null)
    // A part during which the weights changed has no version, but its last tokens are no older than its first.
    const minWeightVersion = this.#part.start?.weightVersion ?? sampledBy?.weight_version ?? undefined
    // Without earlier tokens, the request starts where the first one did.
    const hasTokens = this.#sampled.length > 0
    return {
      ...rest,
      // Each engine request has a separate id, so that a worker, for instance, does not confuse them.
      requestId: `${rest.requestId}-${this.#ended.length + 1}`,
      minWeightVersion,
      ...(hasTokens && rest.record?.routedExperts && { expertsStart: this.#data.expertsStart }),
    }
  }

  #write(events: readonly GenerationEvent[]): Promise<void> | undefined {
    const passed: GenerationEvent[] = []
    let isStopped = false
    for (const event of events) {
      if (event.type === 'start') this.#receiveStart(event)
      else if (event.type === 'end') this.#receiveEnd(event, passed)
      else isStopped = this.#receiveDelta(event, passed)
      if (isStopped) break
    }
    this.#accepted = passed.length > 0 ? this.#sink!.write(passed) : undefined
    if (!isStopped) return this.#accepted
    if (this.#accepted === undefined) throw STOPPED
    return this.#accepted.then(() => {
      throw STOPPED
    })
  }

  /**
   * Receives the start. It is forwarded with the first token, because it names the engine and the weights that sampled.
   */
  #receiveStart(start: GenerationStart): void {
    const { request, offset } = this.#part
    this.#part.start = start
    if (offset > 0) rejectOtherPrompt(request, start)
  }

  #passStart(passed: GenerationEvent[]): void {
    if (this.#isStarted || this.#part.start === undefined) return
    this.#isStarted = true
    passed.push(this.#part.start)
  }

  /**
   * Forwards a delta up to the token that completes a stop string.
   * @returns whether there is such a token, which ends the response
   */
  #receiveDelta(delta: GenerationDelta, passed: GenerationEvent[]): boolean {
    const { stops } = this.#part
    const { tokenIds: ids = [], content, details } = delta
    const joined = details ? { ...delta, details: this.#data.join(details) } : delta
    this.#hasText ||= Boolean(content)
    this.#passStart(passed)
    const count = stops?.read(ids)
    const kept = count === undefined ? joined : truncateDelta(joined, count)
    for (const id of kept.tokenIds ?? []) this.#sampled.push(id)
    passed.push(kept)
    if (stops === undefined || count === undefined) return false
    this.#part.end = { type: 'end', finishReason: 'stop', stopReason: stops.matched }
    this.#passEnd(this.#part.end, passed)
    this.#record('stop')
    return true
  }

  #receiveEnd(end: GenerationEnd, passed: GenerationEvent[]): void {
    this.#part.end = end
    this.#passStart(passed)
    this.#passEnd(end, passed)
  }

  /** Forwards the end with the usage and the weights of the complete response. */
  #passEnd(end: GenerationEnd, passed: GenerationEvent[]): void {
    if (this.#ended.length === 0) {
      passed.push(end)
      return
    }
    const { request, offset } = this.#part
    if (offset > 0) rejectOtherPrompt(request, end)
    const { promptTokenIds, ...rest } = end
    const versions = this.#versionSpans()
    if (versions.length > 0) passed.push({ type: 'delta', details: { weight_versions: versions } })
    passed.push({
      ...rest,
      ...(offset === 0 && promptTokenIds && { promptTokenIds }),
      usage: withEarlierTokens(end, offset),
      // Without a version, the end would be recorded with that of the first part.
      weightVersion: end.weightVersion ?? this.#version ?? null,
    })
  }

  /** Ends a response whose tokens are complete although its engine request was cut. */
  async #finish(finish: ResponseEnd): Promise<void> {
    const passed: GenerationEvent[] = []
    this.#receiveEnd({ type: 'end', ...finish }, passed)
    await this.#sink!.write(passed)
  }

  /** The weight version that samples the current part; undefined: it is unknown, or changed during the part. */
  get #version(): string | undefined {
    const { start, end, cut, announcedVersion } = this.#part
    if (cut?.weightsChanged) return undefined
    const first = start?.weightVersion ?? announcedVersion
    const last = start?.weightVersion ?? this.#options.announcedVersion()
    return first === (end?.weightVersion === undefined ? last : end.weightVersion) ? first : undefined
  }

  /** Returns the weight versions of all tokens: the spans that engines have reported, else one span per part. */
  #versionSpans(): VersionSpan[] {
    const reported = this.#data.versions ?? []
    const isRecorded = this.#ended.at(-1)?.request_id === this.#part.request.requestId
    const parts = isRecorded ? this.#ended : [...this.#ended, this.#toRecord('')]
    return parts.flatMap(({ start, end, weight_version: version }) => {
      const own = reported.filter((span) => span.start >= start && span.end <= end)
      if (own.length > 0 || version === null || end === start) return own
      return [{ version, start, end }]
    })
  }

  /** Returns the record of the current part. */
  #toRecord(endReason: string): EngineRequest {
    const { request, offset, start } = this.#part
    return {
      start: offset,
      end: this.#sampled.length,
      engine: start?.engine ?? null,
      weight_version: (start && this.#version) ?? null,
      request_id: request.requestId,
      end_reason: endReason,
    }
  }

  /** Records the end of the current part. */
  #record(endReason: string): void {
    this.#ended.push(this.#toRecord(endReason))
  }
}

/**
 * Validates that the engine has continued the response.
 * @throws ProxyError `engine_failed` if it reports another prompt than it was sent
 */
function rejectOtherPrompt(
  request: GenerationRequest,
  { promptTokenIds: seen }: Pick<GenerationStart, 'promptTokenIds'>,
): void {
  const sent = getSentPrompt(request)
  if (seen === undefined || sent === undefined || seen.equals(sent)) return
  throw new ProxyError('engine_failed', 'the engine continued the response after another prompt')
}

/** Returns the prompt's token ids, if the request has them. */
function getSentPrompt(request: GenerationRequest): PromptIds | undefined {
  if (request.kind === 'chat') return request.promptTokenIds
  const { prompt } = request.body
  return typeof prompt === 'string' ? undefined : PromptIds.from(prompt)
}

/**
 * Returns the usage of the complete response. The prompt of a later part includes the earlier tokens, which count as
 * completion.
 */
function withEarlierTokens({ usage }: GenerationEnd, offset: number): GenerationEnd['usage'] {
  if (usage === undefined || offset === 0) return usage
  const { prompt_tokens, completion_tokens, prompt_tokens_details: details } = usage
  const prompt = prompt_tokens - offset
  const cached = details?.cached_tokens
  return {
    ...usage,
    prompt_tokens: prompt,
    completion_tokens: completion_tokens + offset,
    ...(cached && { prompt_tokens_details: { ...details, cached_tokens: Math.min(cached, prompt) } }),
  }
}

/** Returns the error that cut a response, with the reason why the response does not continue. */
function withReason(cut: ProxyError, why: string): ProxyError {
  const { code, message, status, retryAfterS, engineBody, logMessage } = cut
  const explanation = `; the response does not continue: ${why}`
  const error = new ProxyError(code, message + explanation, {
    cause: cut,
    status,
    retryAfterS,
    engineBody,
    logMessage: logMessage + explanation,
  })
  error.weightsChanged = cut.weightsChanged
  return error
}
