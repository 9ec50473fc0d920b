/**
 * Numbers of a request as they were written. A prompt shows tools and the arguments of calls to the model as Python writes
 * what it reads: `1000.0` is not `1000` there, and 9007199254740993 keeps its last digit. JavaScript's numbers know
 * neither, so where prompts are made of them such numbers are kept as raw JSON, which `JSON.stringify` writes as it came.
 */
import type { Tool } from './messages.ts'

/** TypeScript does not know of it yet: https://github.com/tc39/proposal-json-parse-with-source */
interface JsonWithSource {
  parse(text: string, revive: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
  rawJSON(text: string): RawNumber
  isRawJSON(value: unknown): value is RawNumber
}

interface RawNumber {
  readonly rawJSON: string
}

const json = JSON as unknown as JsonWithSource

/** What each number that JavaScript writes in another way has: a point, an exponent, many digits, or a zero with a sign. */
const MAY_BE_RAW = /(?:^|[\s:,[])(?:-?(?:\d+[.eE]|\d{16})|-0)/

/**
 * Characters of one request that are read with their source, which takes ten times as long as without: 0.1 s of these,
 * should all of them be numbers. No tools that a context has room for are as long.
 */
export const MAX_NUMBER_LENGTH = 512 * 1024

/**
 * As `JSON.parse`, but for numbers that JavaScript would write in another way: those are raw JSON, which
 * {@link getRawNumber} tells apart. In texts longer than {@link MAX_NUMBER_LENGTH} they are numbers.
 * @throws SyntaxError
 */
export function parseKeepingNumbers(text: string): unknown {
  return getRawValue(text) ?? JSON.parse(text)
}

/** A number as it was written, of a value that stands for one; else undefined. */
export function getRawNumber(value: unknown): string | undefined {
  return json.isRawJSON(value) ? value.rawJSON : undefined
}

/** Tools as JSON, their numbers as the agent wrote them. */
export function formatTools(tools: readonly Tool[]): string {
  return JSON.stringify(tools)
}

/** Where conversations are: in Chat Completions and Messages, in Responses, and in Gemini's. */
export const LIST_FIELDS: readonly string[] = ['messages', 'input', 'contents']

/** What a template is given beside the conversation and its tools. */
export const TEMPLATE_FIELDS: readonly string[] = ['chat_template_kwargs', 'documents']

/**
 * Reads the `body` of a request to a worker, and keeps the numbers of {@link TEMPLATE_FIELDS} in it.
 * @throws SyntaxError
 */
export function parseBody(text: string): unknown {
  const value: unknown = JSON.parse(text)
  const written = OTHER_VALUES.test(text) ? getRawValue(text) : undefined
  if (isObject(value) && isObject(written)) keepTemplateFields(value, written)
  return value
}

/**
 * Reads a request, and keeps the numbers of its tools and of the calls in its conversation as they were written. All
 * others are numbers: the proxy reads them itself.
 * @throws SyntaxError
 */
export function parseRequest(text: string): unknown {
  const value: unknown = JSON.parse(text)
  const written = mayContainTools(text) ? getRawValue(text) : undefined
  if (!isObject(value) || !isObject(written)) return value
  keepTools(value, written)
  keepTemplateFields(value, written)
  if (isObject(value.body) && isObject(written.body)) keepTemplateFields(value.body, written.body)
  for (const field of LIST_FIELDS) {
    const [elements, writtenElements] = [value[field], written[field]]
    if (!Array.isArray(elements) || !Array.isArray(writtenElements)) continue
    for (const [place, element] of elements.entries()) keepInElement(element, writtenElements[place])
  }
  return value
}

/**
 * The same for one element of the conversation, which has been read already.
 * @param element is changed
 * @param text its JSON
 * @param left characters that the request may still have read with their source
 * @returns what is left of them
 */
export function keepNumberTexts(element: unknown, text: string, left: number): number {
  if (text.length > left || !mayContainTools(text)) return left
  const written = getRawValue(text)
  if (written === undefined) return left
  keepInElement(element, written)
  return left - text.length
}

/** Calls whose arguments are no text, and what else a template is given. */
const OTHER_VALUES = /"arguments"\s*:\s*\{|"(?:chat_template_kwargs|documents)"/

/** Whether there may be numbers to keep in the JSON of a request, or of some of its conversation. */
export function mayContainTools(text: string): boolean {
  return text.includes('"tools"') || text.includes('"tool_use"') || OTHER_VALUES.test(text)
}

/** @returns undefined where nothing is raw, and for nesting that takes more stack than there is */
function getRawValue(text: string): unknown {
  if (text.length > MAX_NUMBER_LENGTH || !MAY_BE_RAW.test(text)) return undefined
  try {
    return json.parse(text, (_key, value, { source }) =>
      typeof value === 'number' && source !== undefined && String(value) !== source
        ? json.rawJSON(source)
        : value,
    )
  } catch (thrown) {
    if (thrown instanceof RangeError) return undefined
    throw thrown
  }
}

/** Tools stand among the items of Responses as well; calls that are no text are blocks of Messages. */
function keepInElement(element: unknown, written: unknown): void {
  if (!isObject(element) || !isObject(written)) return
  keepTools(element, written)
  keepArguments(element.tool_calls, written.tool_calls)
  const { content } = element
  if (!Array.isArray(content) || !Array.isArray(written.content)) return
  for (const [place, block] of content.entries())
    if (isObject(block) && block.type === 'tool_use') block.input = written.content[place].input
}

/** Of calls in Chat Completions, where a client writes no text. */
function keepArguments(calls: unknown, written: unknown): void {
  if (!Array.isArray(calls) || !Array.isArray(written)) return
  for (const [place, call] of calls.entries()) {
    const called = isObject(call) ? call.function : undefined
    if (isObject(called) && isObject(called.arguments)) called.arguments = written[place].function.arguments
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
