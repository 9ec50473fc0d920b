/** Request fields without a canonical equivalent: additional fields of engines, and fields for features of vendors. */
import { isObject } from './check.ts'
import { toJsonText } from './json-text.ts'
import type { Removal } from './volatile.ts'

/**
 * Fields of Chat Completions that are not forwarded from another dialect, because they would contradict the lowered
 * request, or request output that the dialect cannot show.
 */
const UNFORWARDED_CHAT_FIELDS = new Set([
  'prompt',
  'n',
  'best_of',
  'stop',
  'max_completion_tokens',
  'stream_options',
  'logprobs',
  'top_logprobs',
  'return_token_ids',
  'functions',
  'function_call',
  'echo',
  'continue_final_message',
  'add_generation_prompt',
])

/** The names of fields in a dialect's requests, by their treatment. */
interface DialectFields {
  /** Fields that are translated into the canonical request. */
  translated: ReadonlySet<string>
  /** Fields of the vendor that engines do not support, or interpret differently. */
  foreign: ReadonlySet<string>
}

/**
 * Returns the fields of a request that are not translated: for `engine` those to forward to it, such as
 * `repetition_penalty`, for `record` those that no engine receives.
 */
export function selectFields(
  target: 'engine' | 'record',
  request: Record<string, unknown>,
  { translated, foreign }: DialectFields,
): Record<string, unknown> {
  const isOnlyRecorded = (field: string) => foreign.has(field) || UNFORWARDED_CHAT_FIELDS.has(field)
  return Object.fromEntries(
    Object.entries(request).filter(
      ([field]) => !translated.has(field) && isOnlyRecorded(field) === (target === 'record'),
    ),
  )
}

/** Returns a copy of an object without the named fields. */
export function omitFields(fields: object, names: ReadonlySet<string>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.has(name)))
}

/**
 * Returns the annotations of the turn.
 * @param fields the request fields that no engine receives
 * @param droppedTools tools that the vendor's servers would run
 */
export function toAnnotations(
  fields: Record<string, unknown>,
  removed: readonly Removal[],
  droppedTools: readonly string[] = [],
): Record<string, unknown> | undefined {
  const hasFields = Object.keys(fields).length > 0
  if (!hasFields && removed.length === 0 && droppedTools.length === 0) return undefined
  // Serialized to reject excessive nesting now: recording the turn, after the response, must not fail.
  toJsonText(fields)
  return {
    ...(hasFields && { request_fields: fields }),
    ...(removed.length > 0 && { removed_from_prompt: removed }),
    ...(droppedTools.length > 0 && { dropped_tools: droppedTools }),
  }
}

/**
 * Returns the `chat_template_kwargs` of a request with `enable_thinking`, which chat templates of models with optional
 * reasoning read; others ignore it. Arguments that the agent sends have precedence. Undefined: nothing is to be added;
 * an invalid value is forwarded, so that the engine rejects it.
 * @param thinks whether the agent switches thinking on or off; undefined: it leaves the choice to the model
 */
export function addThinkingSwitch(
  { chat_template_kwargs: kwargs }: Readonly<Record<string, unknown>>,
  thinks: boolean | undefined,
): object | undefined {
  if (thinks === undefined || (kwargs != null && !isObject(kwargs))) return undefined
  return { enable_thinking: thinks, ...(kwargs as object | null | undefined) }
}
