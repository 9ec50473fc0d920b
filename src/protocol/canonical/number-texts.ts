/**
 * Preserves numbers of a request as they were written. Prompts contain tools and tool-call arguments as Python
 * serializes them: `1000.0` differs from `1000`, and 9007199254740993 keeps its last digit. JavaScript numbers preserve
 * neither. In the parts of a request that prompts contain, such numbers are therefore stored as raw JSON, which
 * `JSON.stringify` writes unchanged. The same applies to integers that engines read as 64-bit integers, such as seeds,
 * and to bounds in schemas.
 */
import { MAX_NESTING } from '../json/json-weight.ts'
import type { Tool } from './messages.ts'

/**
 * The functions of `JSON` that TypeScript does not declare yet: https://github.com/tc39/proposal-json-parse-with-source
 */
interface JsonWithSource {
  parse(text: string, revive: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
  rawJSON(text: string): RawNumber
  isRawJSON(value: unknown): value is RawNumber
}

/** A number as raw JSON, the result of `JSON.rawJSON`. */
export interface RawNumber {
  readonly rawJSON: string
}

const json = JSON as unknown as JsonWithSource

/**
 * Matches text that may contain a number JavaScript would write differently: a point, an exponent, many digits, or -0.
 */
const MAY_BE_RAW = /(?:^|[\s:,[])(?:-?(?:\d+[.eE]|\d{16})|-0)/

/** Matches text that may contain an integer with more digits than a JavaScript number represents. */
const MAY_BE_LARGE = /(?:^|[\s:,[])-?\d{16}/
const INTEGER = /^-?\d+$/

/**
 * The maximum number of characters of a request that are parsed with source texts, which takes ten times as long: 0.1 s
 * for this many if all are numbers. No tools that fit into a context are as long.
 */
export const MAX_NUMBER_LENGTH = 512 * 1024

/**
 * Parses JSON as `JSON.parse` does, except that numbers which JavaScript would write differently become raw JSON (see
 * {@link getRawNumber}). In texts longer than {@link MAX_NUMBER_LENGTH} they stay numbers.
 * @throws SyntaxError
 */
export function parseKeepingNumbers(text: string): unknown {
  return getRawValue(text) ?? JSON.parse(text)
}

/**
 * Parses JSON as `JSON.parse` does, except that integers which a JavaScript number would round become raw JSON, unless
 * they are in {@link READ_FIELDS}.
 * @throws SyntaxError
 */
export function parseKeepingIntegers(text: string): unknown {
  return getLargeIntegers(text) ?? JSON.parse(text)
}

/** Returns a copy of a JSON value that keeps its raw numbers, which `structuredClone` does not. */
export function cloneJson<Value>(value: Value): Value {
  return parseKeepingNumbers(JSON.stringify(value)) as Value
}

/** Returns the text of a raw number, undefined for any other value. */
export function getRawNumber(value: unknown): string | undefined {
  return json.isRawJSON(value) ? value.rawJSON : undefined
}

/** Returns the integer that a value is or represents, undefined for any other value. */
export function readInteger(value: unknown): bigint | undefined {
  if (typeof value === 'number') return Number.isInteger(value) ? BigInt(value) : undefined
  const text = getRawNumber(value)
  return text !== undefined && INTEGER.test(text) ? BigInt(text) : undefined
}

/** Returns an integer for JSON, as raw JSON if a number would round it. */
export function toJsonInteger(integer: bigint): number | RawNumber {
  const number = Number(integer)
  return Number.isSafeInteger(number) ? number : json.rawJSON(integer.toString())
}

/** Serializes tools to JSON with their numbers as the agent wrote them. */
export function formatTools(tools: readonly Tool[]): string {
  return JSON.stringify(tools)
}

/** The fields that contain conversations: in Chat Completions and Messages, in Responses, and in Gemini's API. */
export const LIST_FIELDS: readonly string[] = ['messages', 'input', 'contents']

/** The fields that a template receives besides the conversation and its tools. */
export const TEMPLATE_FIELDS: readonly string[] = ['chat_template_kwargs', 'documents']

/** The fields that engines read as 64-bit integers, or that contain a schema or engine-specific fields. */
export const INTEGER_FIELDS: readonly string[] = [
  ...['seed', 'sampling_seed', 'priority', 'sampling_params', 'generationConfig', 'generation_config'],
  ...['response_format', 'text', 'output_config', 'output_format', 'structured_outputs', 'guided_json'],
  ...['vllm_xargs', 'custom_params', 'extra_body'],
]

/**
 * Limits and counts, at any depth. They stay numbers, because the proxy computes with them; no context is long enough
 * for values that would be rounded.
 */
const READ_FIELDS: ReadonlySet<string> = new Set([
  ...['n', 'max_tokens', 'max_completion_tokens', 'maxOutputTokens', 'max_output_tokens', 'min_tokens'],
  ...['top_k', 'topK', 'candidateCount', 'candidate_count', 'thinkingBudget', 'thinking_budget'],
])

/**
 * Parses the `body` of a request to a worker and keeps the numbers of its {@link TEMPLATE_FIELDS} and
 * {@link INTEGER_FIELDS} as written.
 * @throws SyntaxError
 */
export function parseBody(text: string): unknown {
  const value: unknown = JSON.parse(text)
  const written = OTHER_VALUES.test(text) ? getRawValue(text) : undefined
  keepIntegers(value, text)
  if (isObject(value) && isObject(written)) keepTemplateFields(value, written)
  return value
}

/** Replaces the integers of {@link INTEGER_FIELDS} by those of the text. @param value the result of JSON.parse */
export function keepIntegers(value: unknown, text: string): void {
  // If long integers occur only in the conversation, the text is not parsed again.
  if (!isObject(value) || !MAY_BE_LARGE.test(text)) return
  if (!hasRoundedField(value) && !(isObject(value.body) && hasRoundedField(value.body))) return
  const exact = getLargeIntegers(text)
  if (!isObject(exact)) return
  copyIntegerFields(value, exact)
  if (isObject(value.body) && isObject(exact.body)) copyIntegerFields(value.body, exact.body)
}

function copyIntegerFields(value: Record<string, unknown>, exact: Record<string, unknown>): void {
  for (const field of INTEGER_FIELDS) if (Object.hasOwn(value, field)) value[field] = exact[field]
}

function hasRoundedField(value: Record<string, unknown>): boolean {
  return INTEGER_FIELDS.some((field) => Object.hasOwn(value, field) && hasRoundedInteger(value[field]))
}

/** Returns whether a value has an integer beyond those that JavaScript numbers represent exactly. */
function hasRoundedInteger(value: unknown, levels = MAX_NESTING): boolean {
  if (typeof value === 'number') return Math.abs(value) > Number.MAX_SAFE_INTEGER
  if (typeof value !== 'object' || value === null || levels === 0) return false
  return Object.values(value).some((item) => hasRoundedInteger(item, levels - 1))
}

/**
 * Parses a request and keeps the numbers of its tools and of the tool calls in its conversation as written, and the
 * integers of {@link INTEGER_FIELDS}. All others are numbers, because the proxy reads them itself.
 * @throws SyntaxError
 */
export function parseRequest(text: string): unknown {
  const value: unknown = JSON.parse(text)
  keepIntegers(value, text)
  const written = mayContainNumbersToKeep(text) ? getRawValue(text) : undefined
  if (!isObject(value) || !isObject(written)) return value
  keepTools(value, written)
  keepTemplateFields(value, written)
  if (isObject(value.body) && isObject(written.body)) keepTemplateFields(value.body, written.body)
  for (const field of LIST_FIELDS) {
    const [elements, writtenElements] = [value[field], written[field]]
    if (!Array.isArray(elements) || !Array.isArray(writtenElements)) continue
    for (const [index, element] of elements.entries()) keepInElement(element, writtenElements[index])
  }
  return value
}

/**
 * Keeps the numbers of one parsed element of the conversation, as {@link parseRequest} does.
 * @param element is modified
 * @param text its JSON
 * @param left number of characters of the request that may still be parsed with source texts
 * @returns the remaining number
 */
export function keepNumberTexts(element: unknown, text: string, left: number): number {
  if (text.length > left || !mayContainNumbersToKeep(text)) return left
  const written = getRawValue(text)
  if (written === undefined) return left
  keepInElement(element, written)
  return left - text.length
}

/** Matches tool calls whose arguments are not text, and the fields of {@link TEMPLATE_FIELDS}. */
const OTHER_VALUES = /"arguments"\s*:\s*\{|"(?:chat_template_kwargs|documents)"/

/** Returns whether the JSON of a request, or of a part of its conversation, may contain numbers to keep. */
export function mayContainNumbersToKeep(text: string): boolean {
  return text.includes('"tools"') || text.includes('"tool_use"') || OTHER_VALUES.test(text)
}

/**
 * Parses a text with raw numbers.
 * @returns undefined if it has none, is too long, or is nested too deeply for the stack
 */
function getRawValue(text: string): unknown {
  return MAY_BE_RAW.test(text) ? parseWithSource(text, () => true) : undefined
}

/** Parses a text with raw integers. @returns undefined in the same cases as {@link getRawValue} */
function getLargeIntegers(text: string): unknown {
  const isKept = (key: string, source: string) => INTEGER.test(source) && !READ_FIELDS.has(key)
  return MAY_BE_LARGE.test(text) ? parseWithSource(text, isKept) : undefined
}

/**
 * Parses a text.
 * @param isKept returns whether a number that JavaScript would write differently becomes raw JSON
 * @returns undefined if the text is too long, or nested too deeply for the stack
 */
function parseWithSource(text: string, isKept: (key: string, source: string) => boolean): unknown {
  if (text.length > MAX_NUMBER_LENGTH) return undefined
  try {
    return json.parse(text, (key, value, { source }) =>
      typeof value === 'number' && source !== undefined && String(value) !== source && isKept(key, source)
        ? json.rawJSON(source)
        : value,
    )
  } catch (thrown) {
    if (thrown instanceof RangeError) return undefined
    throw thrown
  }
}

/** Keeps the numbers of one element: Responses also has tools among its items, Messages has tool calls as blocks. */
function keepInElement(element: unknown, written: unknown): void {
  if (!isObject(element) || !isObject(written)) return
  keepTools(element, written)
  keepArguments(element.tool_calls, written.tool_calls)
  const { content } = element
  if (!Array.isArray(content) || !Array.isArray(written.content)) return
  for (const [index, block] of content.entries())
    if (isObject(block) && block.type === 'tool_use') block.input = written.content[index].input
}

/** Keeps the numbers of tool calls in Chat Completions whose arguments a client did not send as text. */
function keepArguments(calls: unknown, written: unknown): void {
  if (!Array.isArray(calls) || !Array.isArray(written)) return
  for (const [index, call] of calls.entries()) {
    const called = isObject(call) ? call.function : undefined
    if (isObject(called) && isObject(called.arguments)) called.arguments = written[index].function.arguments
  }
}

function keepTemplateFields(value: Record<string, unknown>, written: Record<string, unknown>): void {
  for (const field of TEMPLATE_FIELDS) if (isObject(value[field])) value[field] = written[field]
}

function keepTools(value: Record<string, unknown>, written: Record<string, unknown>): void {
  if (Array.isArray(value.tools)) value.tools = written.tools
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}
