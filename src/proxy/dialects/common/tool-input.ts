/** Arguments of tool calls in dialects where they are an object and not the text that the model sampled. */
import { isRecord } from '../../../base/json.ts'
import { isNestedTooDeeply } from '../../../protocol/json/json-weight.ts'
import { toJsonText } from './json-text.ts'

/** The member that wraps text that is not a JSON object; Anthropic's documentation on streamed tool input names it. */
const INVALID_JSON = 'INVALID_JSON'

/** @param written the text that the model sampled */
export function parseToolInput(written: string): object {
  if (written.trim() === '') return {}
  try {
    const parsed: unknown = JSON.parse(written)
    if (isRecord(parsed) && !isNestedTooDeeply(parsed)) return parsed
  } catch {
    // The sampled text reaches the agent and returns unchanged, JSON or not.
  }
  return { [INVALID_JSON]: written }
}

/** Returns the text that {@link parseToolInput} parsed. @throws ProxyError `invalid_request` */
export function formatToolArguments(input: unknown): string {
  if (typeof input === 'object' && input !== null && Object.keys(input).length === 1) {
    const { [INVALID_JSON]: written } = input as Record<string, unknown>
    if (typeof written === 'string') return written
  }
  return toJsonText(input)
}
