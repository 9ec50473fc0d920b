/** Generation requests on the wire: what a worker of each version gets, and what a version-2 worker makes of it. */
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
 * Version 1's request, each field of it always there.
 * @throws ProxyError `unsupported` for a text completion and for token mode: version 1 has messages only
 */
export function requestToV1(request: GenerationRequest, requestId: string): CompletionRequestV1 {
  if (request.kind !== 'chat' || request.promptTokenIds) {
    throw new ProxyError('unsupported', 'the worker speaks protocol version 1, which has chat messages only')
  }
  return fieldsOfV1(request, request.body.messages, requestId)
}

/**
 * Version 2's request. What is large stands in it once: messages and tools as version 1 has them, a prompt of token
 * ids packed, and `body` with all the rest as the agent sent it.
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
    const more = { ...imagesToWire(request), ...readingToWire(request), ...besideBody(request) }
    return { ...fieldsOfV1(request, messages, requestId), kind: 'chat', body, ...ids, ...more }
  }
  const { prompt, ...rest } = request.body
  const fields = {
    ...fieldsOfV1(request, [], requestId),
    kind: 'completion',
    ...besideBody(request),
    ...promptToWire(undefined, requestId, known),
  } as const
  if (typeof prompt === 'string') return { ...fields, body: { ...rest, prompt } }
  return { ...fields, body: rest, prompt_token_ids: packTokenIds(prompt) }
}

/** What a worker has of a prompt. */
export interface PromptBase {
  /** What it reported last of those prompts that the call goes on from. */
  reported?: PromptReport | undefined
  /** It has `prompt_shared`. */
  takesShared?: boolean
}

/** A request's frame, as text or in UTF-8; messages that are there as JSON already are not written again. */
export function requestJson(
  asked: GenerationRequest,
  requestId: string,
  version: 1 | 2,
  known: PromptBase = {},
): string | Buffer {
  const request = known.takesShared ? withoutMessages(asked) : asked
  const fields = version === 1 ? requestToV1(request, requestId) : requestToV2(request, requestId, known)
  const { messagesJson, toolsJson } = request
  if (messagesJson === undefined) return JSON.stringify(fields)
  const { messages: _messages, tools, ...rest } = fields
  if (toolsJson === undefined || tools === null)
    return Buffer.concat(toJsonChunks({ ...rest, tools }, { messages: messagesJson }))
  return Buffer.concat(toJsonChunks(rest, { tools: [toolsJson], messages: messagesJson }))
}

/** A worker that does not know details gets a call without any; its turns have none then. */
export function withoutCapture(request: GenerationRequest): GenerationRequest {
  if (request.record === undefined) return request
  const { record: _requested, ...rest } = request
  return rest
}

/** An engine that is given ids needs messages for the pixels of their images alone. */
function withoutMessages(request: GenerationRequest): GenerationRequest {
  if (request.kind !== 'chat' || request.promptTokenIds === undefined || request.images !== undefined)
    return request
  return { ...request, body: { ...request.body, messages: [] }, messagesJson: [] }
}

function promptToWire(
  ids: PromptIds | undefined,
  requestId: string,
  { reported, takesShared }: PromptBase,
): Pick<CompletionRequestV2, 'prompt_base' | 'prompt_shared' | 'prompt_token_ids'> {
  if (ids === undefined) return reported ? { prompt_base: reported.requestId } : {}
  // What was sampled after it the worker may not know yet.
  const shared = takesShared && reported ? Math.min(reported.ids.sharedWith(ids), reported.ids.length) : 0
  if (reported === undefined || shared < MIN_REPORTED_IDS)
    return { prompt_base: requestId, prompt_token_ids: packTokenIds(ids.whole()) }
  const rest = packTokenIds(ids.slice(shared, ids.length))
  return { prompt_base: reported.requestId, prompt_shared: shared, prompt_token_ids: rest }
}

/** What of a frame is there as JSON, as {@link GenerationRequest} has it. */
export type FrameJson = Pick<GenerationRequest, 'messagesJson' | 'toolsJson'>

/**
 * The request as the proxy's own backend would have got it.
 * @param base the prompt of its `prompt_base`, for one with `prompt_shared`
 * @throws RangeError on token ids that are none
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

/** How the model's answer is to be read, which is what an engine can be held to. */
function readingToWire({ callFormat, mayReason }: GenerationRequest) {
  return {
    ...(callFormat !== undefined && { call_format: callFormat }),
    ...(mayReason && { may_reason: true }),
  }
}

function imagesFromWire(frame: CompletionRequestV2) {
  const { image_token_id: tokenId, image_tokens: tokens, image_edges: edges } = frame
  return tokenId === undefined || tokens === undefined ? undefined : { images: { tokenId, tokens, edges } }
}

/** What version 2 says of a call that is not the agent's word. */
function besideBody(request: GenerationRequest) {
  const { subagent, traceparent } = request
  return {
    ...captureToWire(request),
    ...(subagent !== undefined && { subagent }),
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

/** A name that only a newer proxy knows is left out. */
function captureFromWire({ record: names, experts_start: expertsStart }: CompletionRequestV2) {
  if (names === undefined) return undefined
  const record = parseCaptureOptions(names.filter(isCaptureName))
  return { record, ...(expertsStart !== undefined && { expertsStart }) }
}

function fieldsOfV1(request: GenerationRequest, messages: unknown[], requestId: string): CompletionRequestV1 {
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
