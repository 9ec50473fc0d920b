/**
 * Conversion of tool-call arguments for dialects in which they are an object instead of the text that the model
 * sampled.
 */
import { isRecord } from '../../../base/json.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/number-texts.ts'
import { isNestedTooDeeply } from '../../../protocol/json/json-weight.ts'
import { toJsonText } from './json-text.ts'

/**
 * The name of the member that wraps text that is not a JSON object, as in Anthropic's documentation on streamed tool
 * input.
 */
const INVALID_JSON = 'INVALID_JSON'

/**
 * Parses arguments; their numbers stay as the model wrote them. Text that is not a JSON object is wrapped in one.
 * @param written the text that the model sampled
 */
export function parseToolInput(written: string): object {
  if (written.trim() === '') return {}
  try {
    const parsed: unknown = JSON.parse(written)
    if (isRecord(parsed) && !isNestedTooDeeply(parsed)) return parseKeepingNumbers(written) as object
  } catch {
    // Text that is not JSON is wrapped below, so that the agent receives it and returns it unchanged.
  }
  return { [INVALID_JSON]: written }
}

/**
 * Formats arguments as text: text that {@link parseToolInput} wrapped is restored, an object becomes JSON.
 * @throws ProxyError `invalid_request` if they are nested too deeply
 */
export function formatToolArguments(input: unknown): string {
  if (typeof input === 'object' && input !== null && Object.keys(input).length === 1) {
    const { [INVALID_JSON]: written } = input as Record<string, unknown>
    if (typeof written === 'string') return written
  }
  return toJsonText(input)
}
