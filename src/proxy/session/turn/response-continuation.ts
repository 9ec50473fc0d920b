/**
 * A response that continues after its engine request was cut: further requests sample the rest, and all of them feed one
 * sink. What follows (the decoder, the turn, the agent) receives one start, the tokens of all parts, and one end.
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

interface ResponseContinuationOptions {
  readonly backend: Pick<Backend, 'generate'>
  /** The request of the first part. */
  readonly request: GenerationRequest
  /** Absent: the response cannot be continued, because the engine renders its prompt. */
  readonly continuation: ContinuationPlanner | undefined
  /** Returns the weight version that a trainer has announced, for engines that report none. */
  announcedVersion(): string | undefined
}

/** One weight update cuts a response once; a response that is cut more often than this shows a fault. */
const MAX_ENGINE_REQUESTS = 8

/** The errors after which the rest is requested: the tokens that arrived before them are complete. */
const CUTS: ReadonlySet<ErrorCode> = new Set([
  'engine_aborted',
  'engine_lost',
  'worker_lost',
  'shutting_down',
])

const LOSSES: ReadonlySet<ErrorCode> = new Set(['engine_lost', 'worker_lost'])

/** Thrown to the backend, which then cancels the engine request. */
const STOPPED = new Error('a stop string that began before the cut is complete')

/** The engine request in flight. */
interface ResponsePart {
  readonly request: GenerationRequest
  /** The number of tokens before it. */
  readonly offset: number
  /** Absent in the first part. */
  readonly stops: SplitStopFinder | undefined
  start: GenerationStart | undefined
  end: GenerationEnd | undefined
  announcedVersion: string | undefined
}

export class ResponseContinuation {
  readonly #options: ResponseContinuationOptions
  readonly #sampled: number[] = []
  readonly #data: TokenDataConcatenation
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

  /** The engine requests so far, in order; undefined if the first one was not cut. */
  get engineRequests(): readonly EngineRequest[] | undefined {
    return this.#ended.length > 1 ? this.#ended : undefined
  }

  /**
   * Pushes the response to `sink`.
   * @throws ProxyError as {@link Backend.generate}. If a response that was cut cannot be continued, the message has the
   *   reason.
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
      this.#part = this.#createPart(this.#toRequest(rest.request), rest.stops)
    }
  }

  /** Runs an engine request to its end. @returns the error that cut it; undefined: the response is complete */
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
      const code = thrown instanceof ProxyError ? thrown.code : 'internal'
      this.#record(code === 'engine_aborted' ? 'abort' : code)
      if (signal.aborted || !(thrown instanceof ProxyError) || !CUTS.has(code)) throw thrown
      // Fail-over has given up on a request that engines lose before their first event: it may make them fail.
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
    return { request, offset, stops, start: undefined, end: undefined, announcedVersion: undefined }
  }

  #toRequest(rest: GenerationRequest): GenerationRequest {
    const sampledBy = this.#ended.findLast(({ weight_version: version }) => version !== null)
    return {
      ...rest,
      // The requests of one response must not be mistaken for each other, for instance by a worker.
      requestId: `${rest.requestId}-${this.#ended.length + 1}`,
      minWeightVersion: sampledBy?.weight_version ?? undefined,
      ...(rest.record?.routedExperts && { expertsStart: this.#data.expertsStart }),
    }
  }

  #write(events: readonly GenerationEvent[]): Promise<void> | undefined {
    const passed: GenerationEvent[] = []
    let isStopped = false
    for (const event of events) {
      if (event.type === 'start') this.#begin(event)
      else if (event.type === 'end') this.#end(event, passed)
      else isStopped = this.#add(event, passed)
      if (isStopped) break
    }
    this.#accepted = passed.length > 0 ? this.#sink!.write(passed) : undefined
    if (!isStopped) return this.#accepted
    if (this.#accepted === undefined) throw STOPPED
    return this.#accepted.then(() => {
      throw STOPPED
    })
  }

  /** The start is passed on with the first token: it names the engine and the weights that sampled. */
  #begin(start: GenerationStart): void {
    const { request, offset } = this.#part
    this.#part.start = start
    if (offset > 0) rejectOtherPrompt(request, start)
  }

  #passStart(passed: GenerationEvent[]): void {
    if (this.#isStarted || this.#part.start === undefined) return
    this.#isStarted = true
    passed.push(this.#part.start)
  }

  /** Passes a delta on. @returns whether it completes a stop string that began before the cut, and ends the response */
  #add(delta: GenerationDelta, passed: GenerationEvent[]): boolean {
    const { offset, stops } = this.#part
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
    return offset > 0
  }

  #end(end: GenerationEnd, passed: GenerationEvent[]): void {
    this.#part.end = end
    this.#passStart(passed)
    this.#passEnd(end, passed)
  }

  /** Passes the end on, with the usage and the weights of the whole response. */
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
      // Without a version, the end would get that of the first part.
      weightVersion: end.weightVersion ?? this.#version ?? null,
    })
  }

  /** Ends a response whose tokens were complete when its engine request was cut. */
  async #finish(finish: ResponseEnd): Promise<void> {
    const passed: GenerationEvent[] = []
    this.#end({ type: 'end', ...finish }, passed)
    await this.#sink!.write(passed)
  }

  /** The weights that sample the current part; undefined: unknown, or changed without a cut. */
  get #version(): string | undefined {
    const { start, end, announcedVersion } = this.#part
    const first = start?.weightVersion ?? announcedVersion
    const last = start?.weightVersion ?? this.#options.announcedVersion()
    return first === (end?.weightVersion === undefined ? last : end.weightVersion) ? first : undefined
  }

  /** Returns the spans of all parts, as engines reported them, else of a part as a whole. */
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

  #record(endReason: string): void {
    this.#ended.push(this.#toRecord(endReason))
  }
}

/** @throws ProxyError `engine_failed` if an engine saw another prompt than the earlier prompt and its tokens */
function rejectOtherPrompt(
  request: GenerationRequest,
  { promptTokenIds: seen }: Pick<GenerationStart, 'promptTokenIds'>,
): void {
  const sent = getSentPrompt(request)
  if (seen === undefined || sent === undefined || seen.equals(sent)) return
  throw new ProxyError('engine_failed', 'the engine continued the response after another prompt')
}

/** Returns the prompt if the request has its token ids. */
function getSentPrompt(request: GenerationRequest): PromptIds | undefined {
  if (request.kind === 'chat') return request.promptTokenIds
  const { prompt } = request.body
  return typeof prompt === 'string' ? undefined : PromptIds.from(prompt)
}

/** The prompt of a later part contains the earlier tokens, which are counted as completion. */
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

function withReason(cut: ProxyError, why: string): ProxyError {
  const { code, message, status, retryAfterS, engineBody, logMessage } = cut
  const explanation = `; the response does not continue: ${why}`
  return new ProxyError(code, message + explanation, {
    cause: cut,
    status,
    retryAfterS,
    engineBody,
    logMessage: logMessage + explanation,
  })
}
