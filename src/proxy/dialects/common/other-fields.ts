/** What of a request has no place in a canonical one: engines have fields of their own, vendors have features. */
import { toJsonText } from './json-text.ts'
import type { Removal } from './volatile.ts'

/** Fields of Chat Completions that would contradict what was lowered, or ask for what this API cannot show. */
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
  /** Become something else in the canonical request. */
  translated: ReadonlySet<string>
  /** Are the vendor's: no engine knows them, or knows them as something else. */
  foreign: ReadonlySet<string>
}

/** Where a field goes that is not translated: engines have fields of their own, such as `repetition_penalty`. */
export function routeFields(
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

/** An object but for some of its fields. */
export function without(fields: object, names: ReadonlySet<string>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.has(name)))
}

/** For the record of the turn. @param fields of the request that no engine gets @param droppedTools that the vendor's servers would run */
export function toAnnotations(
  fields: Record<string, unknown>,
  removed: readonly Removal[],
  droppedTools: readonly string[] = [],
): Record<string, unknown> | undefined {
  const hasFields = Object.keys(fields).length > 0
  if (!hasFields && removed.length === 0 && droppedTools.length === 0) return undefined
  // The record is written when the answer is there, and must not fail then.
  toJsonText(fields)
  return {
    ...(hasFields && { request_fields: fields }),
    ...(removed.length > 0 && { removed_from_prompt: removed }),
    ...(droppedTools.length > 0 && { dropped_tools: droppedTools }),
  }
}
