/** Conversion of Gemini's generateContent requests to canonical form: https://ai.google.dev/api/generate-content */

import { createUnsupportedError } from '../../../base/errors.ts'
import { isRecord } from '../../../base/json.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createListChecker } from '../common/check.ts'
import type { DialectRequest } from '../common/dialect-request.ts'
import { toJsonText } from '../common/json-text.ts'
import { addThinkingSwitch, omitFields, selectFields, toAnnotations } from '../common/other-fields.ts'
import { type Removal, removeVolatile, VOLATILE_RULES, type VolatileRule } from '../common/volatile.ts'
import { toJsonSchema } from './json-schema.ts'
import { lowerContents, rejectPrefill } from './lower-contents.ts'
import { listDroppedTools, lowerToolChoice, lowerTools, toCamelTool } from './lower-tools.ts'
import { convertMembers, toCamelCase } from './names.ts'
import { parseText, withPaths } from './parts.ts'
import { Content, GeminiRequest, type GenerationConfig } from './schema.ts'

const check = createListChecker(GeminiRequest, 'contents', Content)

/** The parameters in a request's path. */
export interface GeminiPathParams {
  model: string
  stream: boolean
}

/**
 * Validates the body of a request and lowers it. Fields without a canonical equivalent are recorded with the turn.
 * @param volatileRules the rules that remove text from the system instruction
 * @param memo caches the parts that the session's earlier requests contained
 * @throws ProxyError `invalid_request` naming the field; `unsupported` for a field that cannot be supported
 */
export function lowerGeminiRequest(
  raw: unknown,
  { model, stream }: GeminiPathParams,
  volatileRules: readonly VolatileRule[] = VOLATILE_RULES,
  memo: PartMemo = NO_MEMO,
): DialectRequest {
  const request = check(toCamelRequest(raw, memo), memo) as GeminiRequest & Record<string, unknown>
  rejectServerFeatures(request)
  rejectPrefill(request.contents)
  const { generationConfig } = request
  const config = generationConfig ?? {}
  const { prompt, removed } = lowerPrompt(request, model, volatileRules, memo)
  const body = {
    ...selectFields('engine', request, FIELDS),
    ...prompt,
    ...toSamplingFields(config),
  } as ChatBody
  const rest = omitFields(config, SAMPLING_FIELDS)
  const kept = {
    ...selectFields('record', request, FIELDS),
    ...(Object.keys(rest).length > 0 && { generationConfig: rest }),
  }
  const dropped = listDroppedTools((request.tools ?? []) as Record<string, unknown>[])
  const annotations = toAnnotations(kept, removed, dropped)
  const reasoning = config.thinkingConfig?.includeThoughts === true
  return {
    kind: 'chat',
    body,
    rejectOverlong: true,
    stream,
    responseOptions: {
      logprobs: false,
      tokenIds: false,
      streamUsage: true,
      reasoning,
      sealedReasoning: true,
    },
    ...(annotations && { annotations }),
  }
}

/**
 * Lowers the body of a countTokens request to the prompt whose tokens are counted.
 * @throws as {@link lowerGeminiRequest}
 */
export function lowerGeminiCount(
  raw: unknown,
  model: string,
  volatileRules: readonly VolatileRule[] = VOLATILE_RULES,
  memo: PartMemo = NO_MEMO,
): ChatBody {
  const named = isRecord(raw) ? (raw.generateContentRequest ?? raw.generate_content_request ?? raw) : raw
  const request = check(toCamelRequest(named, memo), memo) as GeminiRequest & Record<string, unknown>
  rejectServerFeatures(request)
  const { prompt } = lowerPrompt(request, model, volatileRules, memo)
  const body = { ...selectFields('engine', request, FIELDS), ...prompt }
  // Serialized to reject excessive nesting, because counting serializes or traverses the body.
  toJsonText(body)
  return body
}

/**
 * Converts the names of Google's fields in a request to camelCase. An engine's fields, such as `repetition_penalty`,
 * keep their names.
 */
function toCamelRequest(raw: unknown, memo: PartMemo): unknown {
  if (!isRecord(raw)) return raw
  const entries = Object.entries(raw).map(([name, value]) => {
    const camel = toCamelCase(name)
    return TRANSLATED_FIELDS.has(camel) || GOOGLE_FIELDS.has(camel) ? [camel, value] : [name, value]
  })
  const named: Record<string, unknown> = Object.fromEntries(entries)
  const { tools, toolConfig, generationConfig: config, systemInstruction: system } = named
  if (Array.isArray(tools)) named.tools = memo.computeOnce(toCamelTools, tools)
  if (isRecord(toolConfig)) named.toolConfig = toCamelMembers(toolConfig, 'functionCallingConfig')
  if (isRecord(config)) named.generationConfig = toCamelMembers(config, 'thinkingConfig')
  if (typeof system === 'string') named.systemInstruction = { parts: [{ text: system }] }
  return named
}

function toCamelTools(tools: unknown[]): unknown[] {
  return tools.map(toCamelTool)
}

/** Converts the names of an object's members, and of the members of its member `member`, to camelCase. */
function toCamelMembers(object: Record<string, unknown>, member: string): unknown {
  const named = convertMembers(object) as Record<string, unknown>
  return isRecord(named[member]) ? { ...named, [member]: convertMembers(named[member]) } : named
}

function lowerPrompt(
  request: GeminiRequest,
  model: string,
  rules: readonly VolatileRule[],
  memo: PartMemo,
): { prompt: ChatBody; removed: Removal[] } {
  const { systemInstruction, contents, tools, toolConfig, generationConfig } = request
  const system = withPaths(systemInstruction?.parts ?? [], 'systemInstruction').map(parseText)
  const { texts, removed } = removeVolatile(system, rules)
  const lowered = tools ? memo.computeOnce(lowerTools, tools as Record<string, unknown>[]) : []
  const prompt = {
    model,
    messages: lowerContents(texts, contents, memo),
    ...(lowered.length > 0 && { tools: lowered }),
    ...(toolConfig?.functionCallingConfig && lowerToolChoice(toolConfig.functionCallingConfig, lowered)),
    ...buildReasoningFields(request),
    ...buildResponseFormat(generationConfig ?? {}),
  }
  return { prompt, removed }
}

/** Returns the reasoning fields. A negative budget leaves the choice to the model. */
function buildReasoningFields(request: GeminiRequest): Partial<ChatBody> {
  const { thinkingBudget: budget, thinkingLevel: level } = request.generationConfig?.thinkingConfig ?? {}
  const isSwitch = typeof budget === 'number' && budget >= 0
  const kwargs = addThinkingSwitch({ ...request }, isSwitch ? budget > 0 : undefined)
  const effort = level?.toLowerCase()
  return {
    ...(kwargs && { chat_template_kwargs: kwargs }),
    ...(effort && effort !== 'thinking_level_unspecified' && { reasoning_effort: effort }),
  }
}

function buildResponseFormat({
  responseMimeType,
  responseSchema,
  responseJsonSchema,
}: GenerationConfig): Partial<ChatBody> {
  if (responseMimeType !== 'application/json') return {}
  const schema = toJsonSchema(responseJsonSchema ?? responseSchema)
  if (!schema) return { response_format: { type: 'json_object' } }
  return { response_format: { type: 'json_schema', json_schema: { name: 'output', schema, strict: true } } }
}

function toSamplingFields(config: GenerationConfig): Partial<ChatBody> {
  const { maxOutputTokens, stopSequences: stop, topK } = config
  const { temperature, topP, seed, presencePenalty, frequencyPenalty } = config
  const fields = {
    max_tokens: maxOutputTokens,
    temperature,
    top_p: topP,
    // Google's API declares this integer as a floating-point number.
    top_k: typeof topK === 'number' ? Math.round(topK) : undefined,
    seed,
    presence_penalty: presencePenalty,
    frequency_penalty: frequencyPenalty,
    stop: stop && stop.length > 0 ? stop : undefined,
  }
  return Object.fromEntries(
    Object.entries(fields).filter(([, value]) => value !== undefined && value !== null),
  )
}

/** Rejects fields whose output the response could not show, or that refer to data on Google's servers. */
function rejectServerFeatures({
  cachedContent,
  generationConfig,
}: Record<string, unknown> & GeminiRequest): void {
  const { candidateCount, responseLogprobs, responseModalities, responseMimeType } = generationConfig ?? {}
  const mime = responseMimeType ?? 'text/plain'
  const uses = {
    cachedContent: Boolean(cachedContent),
    'generationConfig.candidateCount': (candidateCount ?? 1) > 1,
    'generationConfig.responseLogprobs': responseLogprobs === true,
    'generationConfig.responseModalities': (responseModalities ?? []).some(
      (kind) => kind.toUpperCase() !== 'TEXT',
    ),
    'generationConfig.responseMimeType': mime !== 'text/plain' && mime !== 'application/json',
  }
  for (const [param, isUsed] of Object.entries(uses)) {
    if (isUsed) throw createUnsupportedError(`'${param}' is not supported with this value`, param)
  }
}

const TRANSLATED_FIELDS = new Set([
  'contents',
  'systemInstruction',
  'tools',
  'toolConfig',
  'generationConfig',
  'model',
  'stream',
])

/** Fields of `generationConfig` that are translated without loss; the others are recorded with the turn. */
const SAMPLING_FIELDS = new Set([
  'stopSequences',
  'maxOutputTokens',
  'temperature',
  'topP',
  'topK',
  'seed',
  'presencePenalty',
  'frequencyPenalty',
])

/** Fields of Google's API that engines do not support. */
const GOOGLE_FIELDS = new Set([
  'safetySettings',
  'cachedContent',
  'labels',
  'serviceTier',
  'store',
  'modelArmorConfig',
])

const FIELDS = { translated: TRANSLATED_FIELDS, foreign: GOOGLE_FIELDS }
