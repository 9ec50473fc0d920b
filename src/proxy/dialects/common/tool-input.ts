/** Arguments of tool calls, in dialects that have them as an object and not as the text that the model wrote. */
import { isRecord } from '../../../base/json.ts'
import { isNestedTooDeeply } from '../../../protocol/json/nesting.ts'
import { toJsonText } from './json-text.ts'

/** Text that a client has no JSON object for; Anthropic's documentation on streamed tool input names this wrapping. */
const INVALID_JSON = 'INVALID_JSON'

/** @param written by the model */
export function parseToolInput(written: string): object {
  if (written.trim() === '') return {}
  try {
    const parsed: unknown = JSON.parse(written)
    if (isRecord(parsed) && !isNestedTooDeeply(parsed)) return parsed
  } catch {
    // What the model wrote reaches the agent and comes back whole, JSON or not.
  }
  return { [INVALID_JSON]: written }
}

/** The text that {@link parseToolInput} read. @throws ProxyError `invalid_request` */
export function formatToolArguments(input: unknown): string {
  if (typeof input === 'object' && input !== null && Object.keys(input).length === 1) {
    const { [INVALID_JSON]: written } = input as Record<string, unknown>
    if (typeof written === 'string') return written
  }
  return toJsonText(input)
}
