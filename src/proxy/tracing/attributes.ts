/**
 * The attributes of spans. Names are those of the semantic conventions for HTTP and for generative AI
 * (https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/gen-ai-spans.md), and names of
 * the proxy that begin with `llm_proxy.`. No attribute of this file contains text of an agent or a model; `content.ts`
 * builds those.
 */
import type { Attributes } from '@opentelemetry/api'
import { toProxyError } from '../../base/errors.ts'
import { getRawNumber } from '../../protocol/canonical/number-texts.ts'
import type { EngineRequestStart, IncomingRequest } from '../../protocol/canonical/spans.ts'
import { getInexactCode } from '../session/prompts/exactness.ts'
import type { TurnOutcome } from '../store/port/turn-store.ts'

export function getRequestAttributes(call: IncomingRequest): Attributes {
  return {
    'http.request.method': call.method,
    'http.route': call.route,
    'url.path': call.path,
    'url.scheme': call.scheme,
    'session.id': call.sessionId,
    'llm_proxy.dialect': call.dialect,
  }
}

const NAME = /^[\w.:@/+-]{1,128}$/

/**
 * Returns a value if it has the form of a name; undefined otherwise. An agent may send a prompt as a model name, and
 * engines echo it, so other texts must not be exported.
 */
function asName(value: unknown): string | undefined {
  return typeof value === 'string' && NAME.test(value) ? value : undefined
}

/** Returns the operation, followed by the requested model. */
export function getSpanName(start: EngineRequestStart): string {
  const model = asName(start.body.model)
  return model === undefined ? getOperation(start) : `${getOperation(start)} ${model}`
}

/** Returns `chat` or `text_completion`. */
function getOperation({ kind }: EngineRequestStart): string {
  return kind === 'chat' ? 'chat' : 'text_completion'
}

/** Returns the attributes of an engine request, without stop sequences, which are text of the agent. */
export function getEngineAttributes(sessionId: string, start: EngineRequestStart): Attributes {
  const { body } = start
  const number = (field: string) => (typeof body[field] === 'number' ? (body[field] as number) : undefined)
  return omitUndefined({
    'gen_ai.operation.name': getOperation(start),
    'gen_ai.provider.name': start.memberKind,
    'gen_ai.conversation.id': sessionId,
    'session.id': sessionId,
    'gen_ai.request.model': asName(body.model),
    'gen_ai.request.stream': start.stream,
    'gen_ai.request.temperature': number('temperature'),
    'gen_ai.request.top_p': number('top_p'),
    'gen_ai.request.top_k': number('top_k'),
    'gen_ai.request.max_tokens': number('max_completion_tokens') ?? number('max_tokens'),
    // A seed beyond the precision of a JavaScript number is exported as text.
    'gen_ai.request.seed': number('seed') ?? getRawNumber(body.seed),
    'gen_ai.request.frequency_penalty': number('frequency_penalty'),
    'gen_ai.request.presence_penalty': number('presence_penalty'),
    'gen_ai.request.reasoning.level': asName(body.reasoning_effort),
    'llm_proxy.member': start.member,
    ...getAddress(start.member),
  })
}

/**
 * Returns the attributes of an engine's response.
 * @param requestedAtMs start of the engine request, milliseconds since the epoch
 */
export function getResponseAttributes(outcome: TurnOutcome, requestedAtMs: number): Attributes {
  const { usage, finishReason, firstTokenAtMs, promptTokenIds, completionTokenIds } = outcome
  const reported: UsageFields = usage === null ? {} : JSON.parse(usage)
  const hasIds = promptTokenIds.length > 0
  return omitUndefined({
    'gen_ai.response.id': outcome.turnId,
    'gen_ai.response.model': asName(outcome.model),
    'gen_ai.response.finish_reasons': finishReason === null ? undefined : [finishReason],
    'gen_ai.response.time_to_first_chunk':
      firstTokenAtMs === null ? undefined : Math.max(0, firstTokenAtMs - requestedAtMs) / 1_000,
    'gen_ai.usage.input_tokens': hasIds ? promptTokenIds.length : reported.prompt_tokens,
    'gen_ai.usage.output_tokens': hasIds ? completionTokenIds.length : reported.completion_tokens,
    'gen_ai.usage.cache_read.input_tokens': reported.prompt_tokens_details?.cached_tokens,
    'gen_ai.usage.reasoning.output_tokens': reported.completion_tokens_details?.reasoning_tokens,
    'llm_proxy.engine': outcome.engine ?? undefined,
  })
}

/** Returns the attributes of a turn, for the span of the agent's request and the spans of its engine requests. */
export function getTurnAttributes(outcome: TurnOutcome, index: number): Attributes {
  const { inexactReason, weightVersionStart, weightVersionEnd } = outcome
  const { line, prompt } = JSON.parse(outcome.annotations) as SpanAnnotations
  return omitUndefined({
    'llm_proxy.turn.id': outcome.turnId,
    'llm_proxy.turn.index': index,
    'llm_proxy.turn.status': outcome.status,
    'llm_proxy.agent_role': line?.told,
    // The former name, exported until 0.3.0.
    'llm_proxy.line': line?.told,
    'llm_proxy.exact': outcome.exact,
    'llm_proxy.inexact_reason': inexactReason === null ? undefined : getInexactCode(inexactReason),
    'llm_proxy.prompt.reason': prompt?.reason,
    'llm_proxy.prompt.reused_tokens': prompt?.reused_tokens,
    'llm_proxy.weight_version': weightVersionStart ?? undefined,
    'llm_proxy.weight_version_at_end':
      weightVersionEnd === weightVersionStart ? undefined : weightVersionEnd!,
    'error.type': outcome.error?.code,
  })
}

/** Returns the code of an error. Messages are never exported, because they may quote a prompt. */
export function getErrorType(thrown: unknown): string {
  return toProxyError(thrown).code
}

/** The annotations of a turn that its spans contain. */
interface SpanAnnotations {
  line?: { told?: string }
  prompt?: { reason?: string; reused_tokens?: number }
}

/** The token counts that an engine reports. */
interface UsageFields {
  prompt_tokens?: number
  completion_tokens?: number
  prompt_tokens_details?: { cached_tokens?: number } | null
  completion_tokens_details?: { reasoning_tokens?: number } | null
}

/** Returns the address of an engine, whose name is its URL; a worker and the embedded engine have none. */
function getAddress(member: string): Attributes {
  const url = URL.parse(member)
  if (url === null || !/^https?:$/.test(url.protocol)) return {}
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port)
  return { 'server.address': url.hostname, 'server.port': port }
}

/** Returns the attributes without those that are undefined or null. */
function omitUndefined(attributes: Attributes): Attributes {
  return Object.fromEntries(Object.entries(attributes).filter(([, value]) => value != null))
}
