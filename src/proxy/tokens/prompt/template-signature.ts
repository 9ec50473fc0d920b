/**
 * Template signatures: the properties of a conversation that determine the text after it, namely the sequence of roles,
 * and whether each message has text, reasoning or tool calls. One dummy history represents all conversations with the
 * same signature.
 */
import { getImageParts } from '../../../protocol/canonical/images.ts'
import type { ChatMessage, Tool, ToolCall } from '../../../protocol/canonical/messages.ts'
import { PLACEHOLDER_IMAGE } from '../images/placeholder-image.ts'
import { createSentinel } from './sentinels.ts'

/** The shape of a message: what it contains, without the contents. */
export interface MessageShape {
  role: string
  /** Whether the message has text. */
  says: boolean
  /** Whether the message has reasoning. */
  reasons: boolean
  /** The number of tool calls. */
  calls: number
  /** The number of images; absent: none. */
  images?: number
}

/** The shape of the echo. It includes its tool calls, because templates write their names and ids with the results. */
export interface EchoShape extends MessageShape {
  /** The text before the content's sentinel. Default: none. */
  text?: string | undefined
  toolCalls: readonly Pick<ToolCall, 'id' | 'function'>[]
}

/** The template signature of a conversation. Its size does not depend on texts and tool arguments. */
export interface TemplateSignature {
  /** The shape of the dummy history. */
  past: readonly MessageShape[]
  echo: EchoShape
  newShapes: readonly MessageShape[]
  withTools: boolean
  /** Whether a message contains a word that the template searches for. */
  hasWords?: true
  /** The number of images in the complete history, if any: a template may number them. */
  pastImages?: number
}

/**
 * The maximum number of equal shapes in a row, and of tool calls in a message: more make no difference to templates.
 */
const MAX_REPEATS = 2
const MAX_NEW_SHAPES = 12

/**
 * Returns the template signature of a conversation.
 * @param history the messages up to the echo, which is the last one
 */
export function createTemplateSignature(
  history: readonly ChatMessage[],
  newMessages: readonly ChatMessage[],
  withTools: boolean,
): TemplateSignature {
  const echo = history.at(-1)!
  const shapes = history.slice(0, -1).map(getMessageShape)
  const pastImages = shapes.reduce((count, { images = 0 }) => count + images, 0)
  return {
    past: withAllImages(shortenHistory(shapes), pastImages),
    ...(pastImages > 0 && { pastImages }),
    echo: { ...getMessageShape(echo), toolCalls: getToolCalls(echo).map(toBareCall) },
    newShapes: withoutRepeats(newMessages.map(getMessageShape)).slice(0, MAX_NEW_SHAPES),
    withTools,
  }
}

/** Returns a key that is equal for signatures that differ only in the names and ids of the echo's tool calls. */
export function getSignatureKey({
  past,
  echo: { toolCalls: _names, ...echo },
  ...rest
}: TemplateSignature): string {
  return JSON.stringify({ past, echo: { ...echo, calls: Math.min(echo.calls, MAX_REPEATS) }, ...rest })
}

export function getMessageShape(message: ChatMessage): MessageShape {
  const { reasoning_content, reasoning } = message as ChatMessage & { reasoning?: unknown }
  const images = getImageParts(message).length
  return {
    ...(images > 0 && { images }),
    role: message.role,
    says: hasText(message.content),
    reasons: hasText(reasoning_content || reasoning),
    calls: getToolCalls(message).length,
  }
}

/**
 * Assigns all images of the history to the first of these messages that has one. If none has, the dummy history has no
 * images, and its verification fails for templates that number images.
 */
function withAllImages(past: readonly MessageShape[], count: number): MessageShape[] {
  const first = past.findIndex(({ images }) => images !== undefined)
  return past.map(({ images: _, ...shape }, index) => (index === first ? { ...shape, images: count } : shape))
}

/**
 * Shortens a history to about a dozen messages: the leading system messages, one round in place of everything before
 * the latest question, the question, one round in place of the rounds since then except the last one, and the last
 * round.
 */
function shortenHistory(shapes: readonly MessageShape[]): MessageShape[] {
  const firstOther = shapes.findIndex(({ role }) => role !== 'system' && role !== 'developer')
  const head = withoutRepeats(shapes.slice(0, firstOther === -1 ? shapes.length : firstOther))
  const rest = firstOther === -1 ? [] : shapes.slice(firstOther)
  const question = findLatestQuestionStart(rest)
  return [...head, ...toOneRound(rest.slice(0, question)), ...selectCurrentRounds(rest.slice(question))]
}

function findLatestQuestionStart(shapes: readonly MessageShape[]): number {
  let start = shapes.findLastIndex(({ role }) => role === 'user')
  while (start > 0 && shapes[start - 1]!.role === 'user') start -= 1
  return Math.max(start, 0)
}

/** Returns a question and its response, with a tool call and its result between them if the messages contain one. */
function toOneRound(shapes: readonly MessageShape[]): MessageShape[] {
  if (shapes.length === 0) return []
  const responses = shapes.filter(({ role, calls }) => role === 'assistant' && calls === 0)
  const others = shapes.filter(({ role }) => !['user', 'assistant', 'tool'].includes(role))
  return [
    ...shapes.filter(({ role }) => role === 'user').slice(0, 1),
    ...selectCalledRound(shapes),
    ...combineShapes(responses),
    ...withoutRepeats(others).slice(0, MAX_REPEATS),
  ]
}

/** Returns the latest question, one round in place of those after it except the last, and the last round. */
function selectCurrentRounds(shapes: readonly MessageShape[]): MessageShape[] {
  const starts = shapes.flatMap(({ role }, index) => (role === 'assistant' ? [index] : []))
  const last = starts.at(-1)
  if (last === undefined) return withoutRepeats(shapes)
  const lead = withoutRepeats(shapes.slice(0, starts[0]))
  return [...lead, ...selectCalledRound(shapes.slice(starts[0], last)), ...withoutRepeats(shapes.slice(last))]
}

/** Returns one assistant message with a tool call and one result; none if the messages contain none. */
function selectCalledRound(shapes: readonly MessageShape[]): MessageShape[] {
  const calling = shapes.filter(({ role, calls }) => role === 'assistant' && calls > 0)
  const results = withoutRepeats(shapes.filter(({ role }) => role === 'tool'))
  return [...combineShapes(calling), ...results.slice(0, 1)]
}

/** Returns one assistant message with each property that any of the messages has; none if there are no messages. */
function combineShapes(shapes: readonly MessageShape[]): MessageShape[] {
  if (shapes.length === 0) return []
  const has = (field: 'says' | 'reasons' | 'calls') => shapes.some((shape) => Boolean(shape[field]))
  return [{ role: 'assistant', says: has('says'), reasons: has('reasons'), calls: Number(has('calls')) }]
}

/** Removes a message that has the same shape as the two before it. */
function withoutRepeats(shapes: readonly MessageShape[]): MessageShape[] {
  const capped = shapes.map((shape) =>
    shape.calls <= MAX_REPEATS ? shape : { ...shape, calls: MAX_REPEATS },
  )
  return capped.filter((shape, index) =>
    [1, MAX_REPEATS].some((back) => index < back || !isSameShape(shape, capped[index - back]!)),
  )
}

/**
 * Returns whether two shapes are equal. Fields are compared instead of serialized text, because each request compares
 * all messages of its history.
 */
function isSameShape(left: MessageShape, right: MessageShape): boolean {
  return (
    left.role === right.role &&
    left.says === right.says &&
    left.reasons === right.reasons &&
    left.calls === right.calls &&
    left.images === right.images
  )
}

/** Returns messages of these shapes that contain only sentinels, numbered from `from`. */
export function createDummyMessages(shapes: readonly MessageShape[], from: number): ChatMessage[] {
  let openCalls: string[] = []
  return shapes.map((shape, index) => {
    const number = from + index
    const content = shape.says ? createSentinel('message', number) : ''
    if (shape.role === 'tool') {
      const id = openCalls.shift() ?? createCallId(number, 0)
      const toolContent = withImages(content || createSentinel('message', number), shape)
      return { role: 'tool', tool_call_id: id, content: toolContent } as ChatMessage
    }
    if (shape.role !== 'assistant')
      return { role: shape.role, content: withImages(content, shape) } as ChatMessage
    const toolCalls = Array.from({ length: shape.calls }, (_, call) =>
      createEmptyCall(createCallId(number, call)),
    )
    openCalls = toolCalls.map(({ id }) => id)
    return createAssistantMessage(shape, content, createSentinel('reasoning', number), toolCalls)
  })
}

function withImages(text: string, { images = 0 }: MessageShape): string | object[] {
  if (images === 0) return text
  const shown = Array.from({ length: images }, () => PLACEHOLDER_IMAGE)
  return text === '' ? shown : [...shown, { type: 'text', text }]
}

/** Returns the message that represents the echo, and the sentinels of its content, its tool calls and its reasoning. */
export function createSentinelEcho(echo: EchoShape): { message: ChatMessage; sentinels: string[] } {
  const [text, call, reasoning] = [
    createSentinel('message', 0),
    createSentinel('message', 1),
    createSentinel('reasoning', 0),
  ]
  // Each tool call contains the sentinel, because gpt-oss's template renders only the first one.
  const toolCalls = echo.toolCalls.map(({ id, function: { name } }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: JSON.stringify({ text: call }) },
  }))
  const says = echo.says || toolCalls.length === 0
  const message = createAssistantMessage(
    { ...echo, says },
    says ? (echo.text ?? '') + text : '',
    reasoning,
    toolCalls,
  )
  return { message, sentinels: [text, call, reasoning] }
}

/** The number of the first sentinel that does not belong to the echo. */
export const FIRST_SENTINEL = 2

/** A tool that represents all tools of a conversation. */
export const SENTINEL_TOOLS: readonly Tool[] = [
  {
    type: 'function',
    function: {
      name: 'first_tool',
      description: createSentinel('message', 999),
      parameters: { type: 'object', properties: { text: { type: 'string', description: 'text' } } },
    },
  },
]

function createAssistantMessage(
  { reasons }: MessageShape,
  content: string,
  reasoning: string,
  toolCalls: readonly ToolCall[],
): ChatMessage {
  return {
    role: 'assistant',
    content: content === '' ? null : content,
    ...(reasons && { reasoning_content: reasoning }),
    ...(toolCalls.length > 0 && { tool_calls: [...toolCalls] }),
  }
}

/** Returns an id of nine letters and digits, because Mistral's templates reject other ids. */
function createCallId(message: number, call: number): string {
  return `stand${String((message % 100) * 100 + call).padStart(4, '0')}`
}

function createEmptyCall(id: string): ToolCall {
  return { id, type: 'function', function: { name: 'first_tool', arguments: '{}' } }
}

function toBareCall({ id, function: called }: ToolCall): EchoShape['toolCalls'][number] {
  return { id, function: { name: called?.name ?? '', arguments: '' } }
}

function getToolCalls(message: ChatMessage): readonly ToolCall[] {
  return message.role === 'assistant' ? ((message.tool_calls ?? []) as ToolCall[]) : []
}

function hasText(content: unknown): boolean {
  if (Array.isArray(content)) return content.some((part) => hasText(part?.text ?? part?.refusal))
  return typeof content === 'string' && content !== ''
}

/** The shape of an echo that has only content. */
export const CONTENT_ECHO: EchoShape = {
  role: 'assistant',
  says: true,
  reasons: false,
  calls: 0,
  toolCalls: [],
}

/**
 * Returns forms of an echo in order of preference. Callers use the first form whose sentinels the template renders:
 * some templates reject text or reasoning beside tool calls, and some render no tool calls at all. The form does not
 * affect the sampled text, whose ids are recorded.
 */
export function listEchoForms({ text, ...echo }: EchoShape): EchoShape[] {
  const forms = listWordlessForms(echo)
  return text === undefined ? forms : [...forms.map((form) => ({ ...form, text })), ...forms]
}

function listWordlessForms(echo: EchoShape): EchoShape[] {
  if (echo.calls === 0) return [echo, { ...echo, reasons: false }]
  const mute = { ...echo, reasons: false }
  const spoken = { ...mute, says: true }
  const single = { ...mute, says: false, calls: 1, toolCalls: echo.toolCalls.slice(0, 1) }
  return [echo, mute, { ...echo, says: false }, { ...mute, says: false }, single, spoken, CONTENT_ECHO]
}

/**
 * Generates the dummy histories of a signature in order of preference: some templates accept only one tool call per
 * message, and gpt-oss's rejects text beside reasoning and tool calls.
 */
export function* createDummyHistories({ past }: TemplateSignature): Generator<ChatMessage[]> {
  yield createDummyMessages(past, FIRST_SENTINEL)
  const single = past
    .map((shape) => ({ ...shape, calls: Math.min(1, shape.calls) }))
    .filter(({ role }, index) => role !== 'tool' || past[index - 1]?.role !== 'tool')
  yield createDummyMessages(single, FIRST_SENTINEL)
  const mute = single.map((shape) => (shape.calls === 0 ? shape : { ...shape, says: false }))
  yield createDummyMessages(mute, FIRST_SENTINEL)
}

/**
 * Returns dummy messages for those after the echo. All have content, and tool results have the ids of the echo's calls.
 */
export function createFollowingMessages({ echo, newShapes, past }: TemplateSignature): ChatMessage[] {
  const says = (shape: MessageShape): MessageShape => ({ ...shape, says: true })
  const ids = echo.toolCalls.map(({ id }) => id)
  return createDummyMessages(newShapes.map(says), FIRST_SENTINEL + past.length).map((message) =>
    message.role === 'tool' && ids.length > 0 ? { ...message, tool_call_id: ids.shift()! } : message,
  )
}
