/**
 * Attributes of spans: the names of the semantic conventions for HTTP and for generative AI
 * (https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/gen-ai-spans.md), and the proxy's
 * own names under `llm_proxy.`. None of them contains text of an agent or a model; `content.ts` has those.
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
 * Returns a value if it has the form of a name. An agent may send any text as a name, and engines echo it; text that is
 * not a name is not exported.
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

/** Returns the attributes of an engine request; stop sequences are an agent's text and left out. */
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
    // Attributes have no integers of 64 bits.
    'gen_ai.request.seed': number('seed') ?? getRawNumber(body.seed),
    'gen_ai.request.frequency_penalty': number('frequency_penalty'),
    'gen_ai.request.presence_penalty': number('presence_penalty'),
    'gen_ai.request.reasoning.level': asName(body.reasoning_effort),
    'llm_proxy.member': start.member,
    ...getAddress(start.member),
  })
}

/** @param askedAtMs start of the engine request, milliseconds since the epoch */
export function getResponseAttributes(outcome: TurnOutcome, askedAtMs: number): Attributes {
  const { usage, finishReason, firstTokenAtMs, promptTokenIds, completionTokenIds } = outcome
  const reported: UsageFields = usage === null ? {} : JSON.parse(usage)
  const hasIds = promptTokenIds.length > 0
  return omitUndefined({
    'gen_ai.response.id': outcome.turnId,
    'gen_ai.response.model': asName(outcome.model),
    'gen_ai.response.finish_reasons': finishReason === null ? undefined : [finishReason],
    'gen_ai.response.time_to_first_chunk':
      firstTokenAtMs === null ? undefined : Math.max(0, firstTokenAtMs - askedAtMs) / 1_000,
    'gen_ai.usage.input_tokens': hasIds ? promptTokenIds.length : reported.prompt_tokens,
    'gen_ai.usage.output_tokens': hasIds ? completionTokenIds.length : reported.completion_tokens,
    'gen_ai.usage.cache_read.input_tokens': reported.prompt_tokens_details?.cached_tokens,
    'gen_ai.usage.reasoning.output_tokens': reported.completion_tokens_details?.reasoning_tokens,
    'llm_proxy.engine': outcome.engine ?? undefined,
  })
}

/** Returns the recorded facts of a turn, which the spans of the request and of its engine requests have. */
export function getTurnAttributes(outcome: TurnOutcome, index: number): Attributes {
  const { inexactReason, weightVersionStart, weightVersionEnd } = outcome
  const { line, prompt } = JSON.parse(outcome.annotations) as SpanAnnotations
  return omitUndefined({
    'llm_proxy.turn.id': outcome.turnId,
    'llm_proxy.turn.index': index,
    'llm_proxy.turn.status': outcome.status,
    'llm_proxy.agent_role': line?.told,
    // Until 0.3.0.
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

/** Returns the code of an error. Its message is never exported, because it may quote a prompt. */
export function getErrorType(thrown: unknown): string {
  return toProxyError(thrown).code
}

/** The annotations of a turn that spans show. */
interface SpanAnnotations {
  line?: { told?: string }
  prompt?: { reason?: string; reused_tokens?: number }
}

interface UsageFields {
  prompt_tokens?: number
  completion_tokens?: number
  prompt_tokens_details?: { cached_tokens?: number } | null
  completion_tokens_details?: { reasoning_tokens?: number } | null
}

/** Returns the address of a member: engines are named by their URL; workers and the embedded engine have names. */
function getAddress(member: string): Attributes {
  const url = URL.parse(member)
  if (url === null || !/^https?:$/.test(url.protocol)) return {}
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port)
  return { 'server.address': url.hostname, 'server.port': port }
}

/** Returns the attributes without the undefined ones. */
function omitUndefined(attributes: Attributes): Attributes {
  return Object.fromEntries(Object.entries(attributes).filter(([, value]) => value != null))
}
