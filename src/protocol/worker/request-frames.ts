/** Generation requests on the wire: encodes them for workers of each version, and decodes them in version-2 workers. */
import { ProxyError } from '../../base/errors.ts'
import type { ChatBody, CompletionBody, GenerationRequest } from '../canonical/request.ts'
import { toJsonChunks } from '../json/json-member.ts'
import { getCaptureNames, isCaptureName, parseCaptureOptions } from '../token-data/kinds.ts'
import { PromptIds } from '../token-ids/prompt-ids.ts'
import type { CompletionRequestV1, CompletionRequestV2 } from './protocol.ts'
import { MIN_REPORTED_IDS, type PromptReport } from './reported-prompts.ts'
import { packTokenIds, unpackTokenIds } from './token-ids.ts'

const DEFAULT_MAX_TOKENS = 2048

/**
 * Encodes a request for version 1, with every field set.
 * @throws ProxyError `unsupported` for a text completion and for token mode: version 1 has messages only
 */
export function requestToV1(request: GenerationRequest, requestId: string): CompletionRequestV1 {
  if (request.kind !== 'chat' || request.promptTokenIds) {
    throw new ProxyError('unsupported', 'the worker speaks protocol version 1, which has chat messages only')
  }
  return encodeFieldsV1(request, request.body.messages, requestId)
}

/**
 * Encodes a request for version 2. Large values appear once: messages and tools as in version 1, a prompt of token ids
 * packed, and `body` with all other fields as the agent sent them.
 */
export function requestToV2(
  request: GenerationRequest,
  requestId: string,
  known: PromptBase = {},
): CompletionRequestV2 {
  if (request.kind === 'chat') {
    const { messages, tools, ...rest } = request.body
    const body = Array.isArray(tools) || tools === undefined ? rest : { ...rest, tools }
    const ids = promptToWire(request.promptTokenIds, requestId, known)
    const more = { ...imagesToWire(request), ...outputFormatToWire(request), ...encodeRequestFields(request) }
    return { ...encodeFieldsV1(request, messages, requestId), kind: 'chat', body, ...ids, ...more }
  }
  const { prompt, ...rest } = request.body
  const fields = {
    ...encodeFieldsV1(request, [], requestId),
    kind: 'completion',
    ...encodeRequestFields(request),
    ...promptToWire(undefined, requestId, known),
  } as const
  if (typeof prompt === 'string') return { ...fields, body: { ...rest, prompt } }
  return { ...fields, body: rest, prompt_token_ids: packTokenIds(prompt) }
}

/** The prompt that a worker already has, and whether it accepts a prompt as the ids after that. */
export interface PromptBase {
  /** The longest prompt that the worker reported and the request extends. */
  reported?: PromptReport | undefined
  /** Whether the worker has the capability `prompt_shared`. */
  acceptsShared?: boolean
}

/** Serializes a request's frame to text or UTF-8; messages that are JSON already are not serialized again. */
export function serializeRequest(
  fullRequest: GenerationRequest,
  requestId: string,
  version: 1 | 2,
  known: PromptBase = {},
): string | Buffer {
  const request = known.acceptsShared ? withoutMessages(fullRequest) : fullRequest
  const fields = version === 1 ? requestToV1(request, requestId) : requestToV2(request, requestId, known)
  const { messagesJson, toolsJson } = request
  if (messagesJson === undefined) return JSON.stringify(fields)
  const { messages: _messages, tools, ...rest } = fields
  if (toolsJson === undefined || tools === null)
    return Buffer.concat(toJsonChunks({ ...rest, tools }, { messages: messagesJson }))
  return Buffer.concat(toJsonChunks(rest, { tools: [toolsJson], messages: messagesJson }))
}

/** Removes the capture options for a worker that does not support them; its turns then have no token data. */
export function withoutCapture(request: GenerationRequest): GenerationRequest {
  if (request.record === undefined) return request
  const { record: _requested, ...rest } = request
  return rest
}

/** Removes the messages: an engine that receives ids needs them only for the pixels of images. */
function withoutMessages(request: GenerationRequest): GenerationRequest {
  if (request.kind !== 'chat' || request.promptTokenIds === undefined || request.images !== undefined)
    return request
  return { ...request, body: { ...request.body, messages: [] }, messagesJson: [] }
}

function promptToWire(
  ids: PromptIds | undefined,
  requestId: string,
  { reported, acceptsShared }: PromptBase,
): Pick<CompletionRequestV2, 'prompt_base' | 'prompt_shared' | 'prompt_token_ids'> {
  if (ids === undefined) return reported ? { prompt_base: reported.requestId } : {}
  // The base's completion is not counted, because the worker may not have it yet.
  const shared = acceptsShared && reported ? Math.min(reported.ids.countShared(ids), reported.ids.length) : 0
  if (reported === undefined || shared < MIN_REPORTED_IDS)
    return { prompt_base: requestId, prompt_token_ids: packTokenIds(ids.toArray()) }
  const rest = packTokenIds(ids.slice(shared, ids.length))
  return { prompt_base: reported.requestId, prompt_shared: shared, prompt_token_ids: rest }
}

/** The parts of a frame that are JSON already, as in {@link GenerationRequest}. */
export type FrameJson = Pick<GenerationRequest, 'messagesJson' | 'toolsJson'>

/**
 * Decodes a request into the one that the proxy's own backend would have received.
 * @param base the prompt of its `prompt_base`, for one with `prompt_shared`
 * @throws RangeError on invalid token ids
 */
export function requestFromV2(
  frame: CompletionRequestV2,
  json?: FrameJson,
  base?: PromptIds,
): GenerationRequest {
  const call = {
    requestId: frame.request_id,
    sessionId: frame.session_id,
    stream: frame.stream,
    ...captureFromWire(frame),
    ...(frame.subagent !== undefined && { subagent: frame.subagent }),
    ...(frame.min_weight_version !== undefined && { minWeightVersion: frame.min_weight_version }),
    ...(frame.must_serve && { mustServe: true }),
    ...(frame.traceparent !== undefined && { traceparent: frame.traceparent }),
  }
  const packed = frame.prompt_token_ids
  if (frame.kind === 'chat') {
    const tools = frame.tools === null ? undefined : { tools: frame.tools }
    const body = { ...frame.body, messages: frame.messages, ...tools } as ChatBody
    return {
      ...call,
      kind: 'chat',
      body,
      ...json,
      ...(packed !== undefined && {
        promptTokenIds: new PromptIds(unpackTokenIds(packed), base, frame.prompt_shared),
      }),
      ...imagesFromWire(frame),
      ...(frame.call_format !== undefined && { callFormat: frame.call_format }),
      ...(frame.may_reason && { mayReason: true }),
    }
  }
  const prompt = packed === undefined ? undefined : { prompt: Array.from(unpackTokenIds(packed)) }
  return { ...call, kind: 'completion', body: { ...frame.body, ...prompt } as CompletionBody }
}

function imagesToWire({ images }: GenerationRequest) {
  if (images === undefined) return undefined
  const { tokenId, tokens, edges } = images
  const around = edges && { image_edges: [...edges] as [number, number] }
  return { image_token_id: tokenId, image_tokens: [...tokens], ...around }
}

/** Encodes the format of the model's output, which constrained decoding needs. */
function outputFormatToWire({ callFormat, mayReason }: GenerationRequest) {
  return {
    ...(callFormat !== undefined && { call_format: callFormat }),
    ...(mayReason && { may_reason: true }),
  }
}

function imagesFromWire(frame: CompletionRequestV2) {
  const { image_token_id: tokenId, image_tokens: tokens, image_edges: edges } = frame
  return tokenId === undefined || tokens === undefined ? undefined : { images: { tokenId, tokens, edges } }
}

/** Encodes the fields that the proxy adds to a request. */
function encodeRequestFields(request: GenerationRequest) {
  const { subagent, minWeightVersion, mustServe, traceparent } = request
  return {
    ...captureToWire(request),
    ...(subagent !== undefined && { subagent }),
    ...(minWeightVersion !== undefined && { min_weight_version: minWeightVersion }),
    ...(mustServe && { must_serve: true }),
    ...(traceparent !== undefined && { traceparent }),
  }
}

function captureToWire({ record, expertsStart }: GenerationRequest) {
  if (record === undefined) return undefined
  return {
    record: getCaptureNames(record),
    ...(expertsStart !== undefined && { experts_start: expertsStart }),
  }
}

/** Decodes the capture options. Names that only a newer proxy defines are ignored. */
function captureFromWire({ record: names, experts_start: expertsStart }: CompletionRequestV2) {
  if (names === undefined) return undefined
  const record = parseCaptureOptions(names.filter(isCaptureName))
  return { record, ...(expertsStart !== undefined && { expertsStart }) }
}

function encodeFieldsV1(
  request: GenerationRequest,
  messages: unknown[],
  requestId: string,
): CompletionRequestV1 {
  const { body } = request
  const maxTokens = body.max_completion_tokens ?? body.max_tokens
  const { tools, repetition_penalty: repetitionPenalty } = body
  return {
    type: 'completion_request',
    request_id: requestId,
    session_id: request.sessionId,
    messages,
    temperature: body.temperature ?? 1.0,
    top_p: body.top_p ?? 1.0,
    max_tokens: maxTokens ?? DEFAULT_MAX_TOKENS,
    stop: body.stop ?? null,
    tools: Array.isArray(tools) ? tools : null,
    repetition_penalty: typeof repetitionPenalty === 'number' ? repetitionPenalty : null,
    stream: request.stream,
  }
}
