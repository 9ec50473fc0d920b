/** Request fields without a canonical equivalent: engines have additional fields, vendors have additional features. */
import { toJsonText } from './json-text.ts'
import type { Removal } from './volatile.ts'

/**
 * Fields of Chat Completions that would contradict the lowered request, or request output that this API cannot show.
 */
const CHATS = new Set([
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

interface FieldsOfDialect {
  /** Fields that are translated into the canonical request. */
  translated: ReadonlySet<string>
  /** Fields of the vendor that no engine knows, or that have another meaning there. */
  foreign: ReadonlySet<string>
}

/**
 * Selects the fields that go to the engine, or are only recorded; engines have additional fields, such as
 * `repetition_penalty`.
 */
export function selectFields(
  whom: 'engine' | 'record',
  request: Record<string, unknown>,
  { translated, foreign }: FieldsOfDialect,
): Record<string, unknown> {
  const isKept = (field: string) => foreign.has(field) || CHATS.has(field)
  return Object.fromEntries(
    Object.entries(request).filter(
      ([field]) => !translated.has(field) && isKept(field) === (whom === 'record'),
    ),
  )
}

/** Returns an object without some of its fields. */
export function omitFields(fields: object, names: ReadonlySet<string>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.has(name)))
}

/**
 * Returns the annotations of the turn.
 * @param fields of the request that no engine receives
 * @param droppedTools tools that the vendor's servers would run
 */
export function toAnnotations(
  fields: Record<string, unknown>,
  removed: readonly Removal[],
  droppedTools: readonly string[] = [],
): Record<string, unknown> | undefined {
  const hasFields = Object.keys(fields).length > 0
  if (!hasFields && removed.length === 0 && droppedTools.length === 0) return undefined
  // Checked now, because the turn is recorded after the response, when it must not fail.
  toJsonText(fields)
  return {
    ...(hasFields && { request_fields: fields }),
    ...(removed.length > 0 && { removed_from_prompt: removed }),
    ...(droppedTools.length > 0 && { dropped_tools: droppedTools }),
  }
}
