/** Version 2's responses on the wire: encodes and decodes generation events and errors. */
import { type ErrorCode, ProxyError } from '../../base/errors.ts'
import type {
  EngineSampling,
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
  GenerationStart,
} from '../canonical/events.ts'
import type { TokenLogprob, Usage } from '../canonical/messages.ts'
import { isTokenDataKind, packTokenData, type TokenData, unpackTokenData } from '../token-data/token-data.ts'
import { PromptIds } from '../token-ids/prompt-ids.ts'
import {
  type CompletionChunk,
  type CompletionResponseV2,
  PROMPT_FORGOTTEN,
  type WireDelta,
  type WireError,
  type WireStart,
} from './protocol.ts'
import { packTokenIds, unpackTokenIds } from './token-ids.ts'

/** A value before JSON serialization, which omits undefined members. */
type BeforeJson<T> = T extends object
  ? { [K in keyof T]: T extends Record<K, T[K]> ? BeforeJson<T[K]> : BeforeJson<T[K]> | undefined }
  : T

/**
 * Encodes the events of a batch as one chunk.
 * @param base a prompt that the proxy has: only the ids that the prompt adds to it are sent
 * @returns a function that serializes the chunk with its sequence number; undefined if `events` contains only an end
 */
export function createChunkFrame(
  requestId: string,
  events: readonly GenerationEvent[],
  base?: PromptIds,
): ((seq: number) => string) | undefined {
  let start: BeforeJson<WireStart> | undefined
  const deltas: WireDelta[] = []
  for (const event of events) {
    if (event.type === 'delta') deltas.push(deltaToWire(event))
    else if (event.type === 'start') start = startToWire(event, base)
  }
  if (start === undefined && deltas.length === 0) return undefined
  return createFrameFormatter<CompletionChunk>('completion_chunk', requestId, { start, deltas })
}

/** Creates the last frame of a finished completion. */
export function createResponseFrame(requestId: string, end: GenerationEnd): (seq: number) => string {
  return createFrameFormatter<CompletionResponseV2>('completion_response', requestId, {
    finish_reason: end.finishReason,
    stop_reason: end.stopReason,
    usage: end.usage && { ...end.usage },
    prompt_token_ids: end.promptTokenIds && packTokenIds(end.promptTokenIds.toArray()),
    weight_version: end.weightVersion,
    error: null,
  })
}

/** Creates the last frame of a failed request. */
export function createFailureFrame(requestId: string, error: ProxyError): (seq: number) => string {
  return createFailedFrame(requestId, errorToWire(error))
}

/** The length of a message in {@link createShortFailureFrame}: enough for any text that people read. */
const SHORT_MESSAGE_LENGTH = 2_000

/** Creates the last frame of a failed request whose complete error exceeds the frame limit. */
export function createShortFailureFrame(requestId: string, error: ProxyError): (seq: number) => string {
  const message = error.message.slice(0, SHORT_MESSAGE_LENGTH)
  return createFailedFrame(requestId, {
    ...errorToWire(error),
    ...{ message, param: undefined, engine_body: undefined },
  })
}

/** Creates the frame that requests the complete prompt from the proxy. */
export function createPromptForgottenFrame(requestId: string): (seq: number) => string {
  const message = 'the worker no longer has the prompt that this one extends'
  return createFailedFrame(requestId, { code: PROMPT_FORGOTTEN, message, status: 409 })
}

function createFailedFrame(requestId: string, error: BeforeJson<WireError>): (seq: number) => string {
  return createFrameFormatter<CompletionResponseV2>('completion_response', requestId, {
    finish_reason: null,
    error,
  })
}

/** Returns a function that serializes the frame with its sequence number. */
function createFrameFormatter<Frame extends CompletionChunk | CompletionResponseV2>(
  type: Frame['type'],
  requestId: string,
  rest: BeforeJson<Omit<Frame, 'type' | 'request_id' | 'seq'>>,
): (seq: number) => string {
  return (seq) => JSON.stringify({ type, request_id: requestId, seq, ...rest })
}

/**
 * Decodes a chunk.
 * @param workerId prefix of the engine's recorded name
 * @param base the prompt to which the worker reports only additional ids
 * @throws RangeError on invalid token ids
 */
export function parseChunk(chunk: CompletionChunk, workerId: string, base?: PromptIds): GenerationEvent[] {
  const events: GenerationEvent[] = chunk.deltas.map(deltaFromWire)
  if (chunk.start) events.unshift(startFromWire(chunk.start, workerId, base))
  return events
}

/**
 * Decodes the end of a response.
 * @throws ProxyError that the worker reports; `engine_failed` if it does not report why the completion ended
 * @throws RangeError on invalid token ids
 */
export function parseResponseEnd(response: CompletionResponseV2): GenerationEnd {
  if (response.error) throw errorFromWire(response.error)
  const {
    finish_reason: finishReason,
    stop_reason: stopReason,
    usage,
    prompt_token_ids: packed,
    weight_version: weightVersion,
  } = response
  // A truncated completion must not be trained on as one that ended by itself.
  if (finishReason === null) throw new ProxyError('engine_failed', 'The worker reported no finish reason')
  return {
    type: 'end',
    finishReason,
    ...(stopReason !== undefined && { stopReason }),
    ...(usage && { usage: usage as unknown as Usage }),
    ...(packed !== undefined && { promptTokenIds: new PromptIds(unpackTokenIds(packed)) }),
    ...(weightVersion !== undefined && { weightVersion }),
  }
}

function startToWire(
  { engine, model, promptTokenIds, weightVersion, sampling }: GenerationStart,
  base: PromptIds | undefined,
): BeforeJson<WireStart> {
  return {
    engine,
    model,
    ...(promptTokenIds && promptToWire(promptTokenIds, base)),
    weight_version: weightVersion,
    sampling: sampling && samplingToWire(sampling),
  }
}

function samplingToWire({ logprobsMode, defaults }: EngineSampling) {
  return { logprobs_mode: logprobsMode, defaults }
}

function samplingFromWire({
  logprobs_mode: logprobsMode,
  defaults,
}: NonNullable<WireStart['sampling']>): EngineSampling {
  return { ...(logprobsMode !== undefined && { logprobsMode }), ...(defaults && { defaults }) }
}

function promptToWire(
  ids: PromptIds,
  base: PromptIds | undefined,
): Pick<WireStart, 'prompt_token_ids' | 'prompt_shared'> {
  // The base's completion is not counted, because this side may not have it, and the other one may not have it yet.
  const shared = base === undefined ? 0 : Math.min(base.countShared(ids), base.length)
  const rest = packTokenIds(ids.slice(shared, ids.length))
  return { ...(shared > 0 && { prompt_shared: shared }), prompt_token_ids: rest }
}

function promptFromWire(
  { prompt_token_ids: packed, prompt_shared: shared = 0 }: WireStart,
  base: PromptIds | undefined,
): PromptIds | undefined {
  if (packed === undefined) return undefined
  const rest = unpackTokenIds(packed)
  if (shared > (base?.length ?? 0)) throw new RangeError('the prompt extends one that was not reported')
  return new PromptIds(rest, base, shared)
}

function startFromWire(start: WireStart, workerId: string, base: PromptIds | undefined): GenerationStart {
  const { engine, model, weight_version: weightVersion, sampling } = start
  const promptTokenIds = promptFromWire(start, base)
  return {
    type: 'start',
    engine: `${workerId}/${engine}`,
    ...(model !== undefined && { model }),
    ...(promptTokenIds && { promptTokenIds }),
    ...(weightVersion !== undefined && { weightVersion }),
    ...(sampling && { sampling: samplingFromWire(sampling) }),
  }
}

// The next two functions create one object with few branches per delta, because they handle fifty thousand deltas a
// second.

function deltaToWire(delta: GenerationDelta): WireDelta {
  const wire: WireDelta = {}
  if (delta.content !== undefined) wire.content = delta.content
  if (delta.reasoning !== undefined) wire.reasoning = delta.reasoning
  if (delta.refusal !== undefined) wire.refusal = delta.refusal
  if (delta.toolCalls !== undefined) wire.tool_calls = delta.toolCalls
  if (delta.tokenIds !== undefined) wire.token_ids = delta.tokenIds
  if (delta.logprobs !== undefined) wire.log_probs = delta.logprobs
  if (delta.logprobsContent !== undefined) wire.logprobs_content = delta.logprobsContent.map(asRecord)
  if (delta.details !== undefined) wire.details = detailsToWire(delta.details)
  if (delta.extra !== undefined) wire.extra = delta.extra
  return wire
}

function deltaFromWire(wire: WireDelta): GenerationDelta {
  const delta: GenerationDelta = { type: 'delta' }
  if (wire.content !== undefined) delta.content = wire.content
  if (wire.reasoning !== undefined) delta.reasoning = wire.reasoning
  if (wire.refusal !== undefined) delta.refusal = wire.refusal
  if (wire.tool_calls !== undefined) delta.toolCalls = wire.tool_calls
  if (wire.token_ids !== undefined) delta.tokenIds = wire.token_ids.map(orNaN)
  if (wire.log_probs !== undefined) delta.logprobs = wire.log_probs.map(orNaN)
  if (wire.logprobs_content !== undefined) {
    delta.logprobsContent = wire.logprobs_content as unknown as TokenLogprob[]
  }
  if (wire.details !== undefined) delta.details = detailsFromWire(wire.details)
  if (wire.extra !== undefined) delta.extra = wire.extra
  return delta
}

function detailsToWire(details: TokenData): NonNullable<WireDelta['details']> {
  const packed = packTokenData(details).map(({ kind, body }) => [kind, Buffer.from(body).toString('base64')])
  return Object.fromEntries(packed)
}

/** Decodes token data. Kinds that only a newer worker defines are ignored. @throws RangeError on invalid token data */
function detailsFromWire(wire: NonNullable<WireDelta['details']>): TokenData {
  return unpackTokenData(
    Object.entries(wire).flatMap(([kind, text]) =>
      isTokenDataKind(kind) ? [{ kind, body: Buffer.from(text, 'base64') }] : [],
    ),
  )
}

/** Converts null, a number that the engine did not report or that JSON cannot represent, to NaN. */
function orNaN(value: number | null): number {
  return value ?? Number.NaN
}

function asRecord(entry: TokenLogprob): Record<string, unknown> {
  return entry as unknown as Record<string, unknown>
}

function errorToWire(error: ProxyError): BeforeJson<WireError> {
  return {
    code: error.code,
    message: error.message,
    status: error.status,
    param: error.param,
    retry_after_s: error.retryAfterS,
    engine_body: error.engineBody,
    log_message: error.logMessage.slice(0, 1_000),
    weights_changed: error.weightsChanged || undefined,
  }
}

/**
 * The codes that a worker may report: failures of its engines, and invalid requests. All others belong to the proxy: a
 * worker must not make an agent's key invalid or its session ended, nor report that a turn's agent has disconnected.
 */
const WORKER_ERROR_CODES: ReadonlySet<string> = new Set<ErrorCode>([
  'invalid_request',
  'unsupported',
  'context_length_exceeded',
  'engine_rejected',
  'engine_failed',
  'engine_aborted',
  'engine_lost',
  'engine_unreachable',
  'engine_timeout',
  'no_worker',
  'policy_not_served',
  'queue_full',
  'shutting_down',
])

function errorFromWire(wire: WireError): ProxyError {
  const code = WORKER_ERROR_CODES.has(wire.code) ? (wire.code as ErrorCode) : 'engine_failed'
  const error = new ProxyError(code, wire.message, {
    status: wire.status,
    ...(wire.param !== undefined && { param: wire.param }),
    ...(wire.retry_after_s !== undefined && { retryAfterS: wire.retry_after_s }),
    ...(wire.engine_body !== undefined && { engineBody: wire.engine_body }),
    logMessage: wire.log_message ?? `the worker reported ${code}`,
  })
  error.weightsChanged = wire.weights_changed === true
  return error
}
