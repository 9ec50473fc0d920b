/**
 * Conversion of the results of Anthropic's server tools in a history (`web_search_tool_result` and similar) to text.
 */
import { isRecord } from '../../../base/json.ts'

/** The fields that a model can read, in the order in which their values are written. */
const READABLE = [
  'title',
  'url',
  'text',
  'stdout',
  'stderr',
  'return_code',
  'error_code',
  'tool_name',
  'lines',
  'content',
  'source',
  'tool_references',
]

/** The fields whose value is written with the field's name, because the value alone is meaningless. */
const NAMED = new Set(['return_code', 'error_code'])

/** The maximum depth of recursion. The deepest known result, the document that `web_fetch` returns, has six levels. */
const MAX_DEPTH = 10

/**
 * Returns the text of a result of any server tool: titles and addresses of search results, output of executed code,
 * fetched text. Fields that are encrypted, binary or unknown are left out.
 */
export function formatServerToolResult({ content }: Record<string, unknown>): string {
  return collectTexts(content, 0).join('\n')
}

function collectTexts(value: unknown, depth: number): string[] {
  if (typeof value === 'string') return value === '' ? [] : [value]
  if (depth > MAX_DEPTH) return []
  if (Array.isArray(value)) return value.flatMap((element) => collectTexts(element, depth + 1))
  if (!isRecord(value)) return []
  const texts = READABLE.flatMap((name) => collectMemberTexts(name, value[name], depth))
  // Sources of type `text` have text as their data; others have Base64.
  return value.type === 'text' ? [...texts, ...collectTexts(value.data, depth + 1)] : texts
}

function collectMemberTexts(name: string, value: unknown, depth: number): string[] {
  if (!NAMED.has(name)) return collectTexts(value, depth + 1)
  return typeof value === 'string' || typeof value === 'number' ? [`${name}: ${value}`] : []
}
