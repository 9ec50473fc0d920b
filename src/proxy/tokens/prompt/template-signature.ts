/**
 * What of a conversation matters to the text behind it: who spoke, with text, reasoning or calls, in which order. Two
 * conversations of one shape are in the same situation, and a short one stands for both.
 */
import { getImageParts } from '../../../protocol/canonical/images.ts'
import type { ChatMessage, Tool, ToolCall } from '../../../protocol/canonical/messages.ts'
import { PLACEHOLDER_IMAGE } from '../images/placeholder-image.ts'
import { createSentinel } from './sentinels.ts'

/** A message without what it says. */
export interface MessageShape {
  role: string
  says: boolean
  reasons: boolean
  calls: number
  /** How many; absent: none. */
  images?: number
}

/** The assistant's message that echoes a completion; templates print names and ids of its calls with the results. */
export interface EchoShape extends MessageShape {
  /** What it says in front of its marks. Default: nothing. */
  text?: string | undefined
  toolCalls: readonly Pick<ToolCall, 'id' | 'function'>[]
}

/** Texts and arguments are left out; what is here does not grow with them. */
export interface TemplateSignature {
  /** The short past. */
  past: readonly MessageShape[]
  echo: EchoShape
  newShapes: readonly MessageShape[]
  withTools: boolean
  /** Something that was said has a word that the template looks for. */
  hasWords?: true
  /** Of the whole past, where it has any: a template may number them. */
  pastImages?: number
}

/** More of a kind in a row make no difference that two of them do not make. */
const MANY = 2
const MAX_NEW_SHAPES = 12

/** @param history ends with the echo */
export function createTemplateSignature(
  history: readonly ChatMessage[],
  newMessages: readonly ChatMessage[],
  withTools: boolean,
): TemplateSignature {
  const echo = history.at(-1)!
  const shapes = history.slice(0, -1).map(getMessageShape)
  const pastImages = shapes.reduce((count, { images = 0 }) => count + images, 0)
  return {
    past: withAllImages(shorten(shapes), pastImages),
    ...(pastImages > 0 && { pastImages }),
    echo: { ...getMessageShape(echo), toolCalls: getToolCalls(echo).map(bareCall) },
    newShapes: withoutRepeats(newMessages.map(getMessageShape)).slice(0, MAX_NEW_SHAPES),
    withTools,
  }
}

/** Equal for situations that are alike but for names and ids. */
export function getSignatureKey({
  past,
  echo: { toolCalls: _names, ...echo },
  ...rest
}: TemplateSignature): string {
  return JSON.stringify({ past, echo: { ...echo, calls: Math.min(echo.calls, MANY) }, ...rest })
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

/** All of them in the first message that had one and is left; where none is left, the past as a whole is rendered. */
function withAllImages(past: readonly MessageShape[], count: number): MessageShape[] {
  const first = past.findIndex(({ images }) => images !== undefined)
  return past.map(({ images: _, ...shape }, index) => (index === first ? { ...shape, images: count } : shape))
}

/**
 * A past in at most about a dozen messages: its head, one round for all that came before the latest question, the
 * question, one round for all but the last since then, and the last.
 */
function shorten(shapes: readonly MessageShape[]): MessageShape[] {
  const firstOther = shapes.findIndex(({ role }) => role !== 'system' && role !== 'developer')
  const head = withoutRepeats(shapes.slice(0, firstOther === -1 ? shapes.length : firstOther))
  const rest = firstOther === -1 ? [] : shapes.slice(firstOther)
  const question = startOfLatestQuestion(rest)
  return [...head, ...inOneRound(rest.slice(0, question)), ...currentRounds(rest.slice(question))]
}

function startOfLatestQuestion(shapes: readonly MessageShape[]): number {
  let start = shapes.findLastIndex(({ role }) => role === 'user')
  while (start > 0 && shapes[start - 1]!.role === 'user') start -= 1
  return Math.max(start, 0)
}

/** A question and its answer; with a call and its result between them if there were any. */
function inOneRound(shapes: readonly MessageShape[]): MessageShape[] {
  if (shapes.length === 0) return []
  const answers = shapes.filter(({ role, calls }) => role === 'assistant' && calls === 0)
  const others = shapes.filter(({ role }) => !['user', 'assistant', 'tool'].includes(role))
  return [
    ...shapes.filter(({ role }) => role === 'user').slice(0, 1),
    ...calledRound(shapes),
    ...united(answers),
    ...withoutRepeats(others).slice(0, MANY),
  ]
}

function currentRounds(shapes: readonly MessageShape[]): MessageShape[] {
  const starts = shapes.flatMap(({ role }, index) => (role === 'assistant' ? [index] : []))
  const last = starts.at(-1)
  if (last === undefined) return withoutRepeats(shapes)
  const lead = withoutRepeats(shapes.slice(0, starts[0]))
  return [...lead, ...calledRound(shapes.slice(starts[0], last)), ...withoutRepeats(shapes.slice(last))]
}

function calledRound(shapes: readonly MessageShape[]): MessageShape[] {
  const calling = shapes.filter(({ role, calls }) => role === 'assistant' && calls > 0)
  const results = withoutRepeats(shapes.filter(({ role }) => role === 'tool'))
  return [...united(calling), ...results.slice(0, 1)]
}

/** One of the assistant's that has whatever any of its messages has; none for none. */
function united(shapes: readonly MessageShape[]): MessageShape[] {
  if (shapes.length === 0) return []
  const has = (field: 'says' | 'reasons' | 'calls') => shapes.some((shape) => Boolean(shape[field]))
  return [{ role: 'assistant', says: has('says'), reasons: has('reasons'), calls: Number(has('calls')) }]
}

function withoutRepeats(shapes: readonly MessageShape[]): MessageShape[] {
  const capped = shapes.map((shape) => (shape.calls <= MANY ? shape : { ...shape, calls: MANY }))
  return capped.filter((shape, index) =>
    [1, MANY].some((back) => index < back || !isSameShape(shape, capped[index - back]!)),
  )
}

/** Of all messages of a past, with each call: by its fields, and not by text that is made of them. */
function isSameShape(left: MessageShape, right: MessageShape): boolean {
  return (
    left.role === right.role &&
    left.says === right.says &&
    left.reasons === right.reasons &&
    left.calls === right.calls &&
    left.images === right.images
  )
}

/** Messages of these shapes that say nothing but marks, numbered from `from` on. */
export function createDummyMessages(shapes: readonly MessageShape[], from: number): ChatMessage[] {
  let openCalls: string[] = []
  return shapes.map((shape, index) => {
    const number = from + index
    const content = shape.says ? createSentinel('message', number) : ''
    if (shape.role === 'tool') {
      const id = openCalls.shift() ?? callId(number, 0)
      const said = withImages(content || createSentinel('message', number), shape)
      return { role: 'tool', tool_call_id: id, content: said } as ChatMessage
    }
    if (shape.role !== 'assistant')
      return { role: shape.role, content: withImages(content, shape) } as ChatMessage
    const toolCalls = Array.from({ length: shape.calls }, (_, call) => emptyCall(callId(number, call)))
    openCalls = toolCalls.map(({ id }) => id)
    return assistant(shape, content, createSentinel('reasoning', number), toolCalls)
  })
}

function withImages(text: string, { images = 0 }: MessageShape): string | object[] {
  if (images === 0) return text
  const shown = Array.from({ length: images }, () => PLACEHOLDER_IMAGE)
  return text === '' ? shown : [...shown, { type: 'text', text }]
}

/** The message that stands for the echo, and the marks that it ends with. */
export function createSentinelEcho(echo: EchoShape): { message: ChatMessage; marks: string[] } {
  const [text, call, reasoning] = [
    createSentinel('message', 0),
    createSentinel('message', 1),
    createSentinel('reasoning', 0),
  ]
  // In each of them: gpt-oss's template shows the first one only.
  const toolCalls = echo.toolCalls.map(({ id, function: { name } }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: JSON.stringify({ text: call }) },
  }))
  const says = echo.says || toolCalls.length === 0
  const message = assistant({ ...echo, says }, says ? (echo.text ?? '') + text : '', reasoning, toolCalls)
  return { message, marks: [text, call, reasoning] }
}

/** Numbers of an echo's own marks are below this. */
export const FIRST_SENTINEL = 2

/** One tool stands for all, where a conversation has any. */
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

function assistant(
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

/** Nine letters and digits: Mistral's templates refuse other ids. */
function callId(message: number, call: number): string {
  return `stand${String((message % 100) * 100 + call).padStart(4, '0')}`
}

function emptyCall(id: string): ToolCall {
  return { id, type: 'function', function: { name: 'first_tool', arguments: '{}' } }
}

function bareCall({ id, function: called }: ToolCall): EchoShape['toolCalls'][number] {
  return { id, function: { name: called?.name ?? '', arguments: '' } }
}

function getToolCalls(message: ChatMessage): readonly ToolCall[] {
  return message.role === 'assistant' ? ((message.tool_calls ?? []) as ToolCall[]) : []
}

function hasText(content: unknown): boolean {
  if (Array.isArray(content)) return content.some((part) => hasText(part?.text ?? part?.refusal))
  return typeof content === 'string' && content !== ''
}

/** An answer in text. */
export const ANSWER: EchoShape = { role: 'assistant', says: true, reasons: false, calls: 0, toolCalls: [] }

/**
 * Some templates refuse text or reasoning beside calls, and some show no calls at all: the first form is taken whose
 * marks are to be seen. What was sampled is not printed from here anyway.
 */
export function listEchoForms({ text, ...echo }: EchoShape): EchoShape[] {
  const forms = wordlessForms(echo)
  return text === undefined ? forms : [...forms.map((form) => ({ ...form, text })), ...forms]
}

function wordlessForms(echo: EchoShape): EchoShape[] {
  if (echo.calls === 0) return [echo, { ...echo, reasons: false }]
  const mute = { ...echo, reasons: false }
  const spoken = { ...mute, says: true }
  const single = { ...mute, says: false, calls: 1, toolCalls: echo.toolCalls.slice(0, 1) }
  return [echo, mute, { ...echo, says: false }, { ...mute, says: false }, single, spoken, ANSWER]
}

/**
 * Short pasts of a situation, to be tried in order, each made when it is asked for: some templates take one call a message, and
 * gpt-oss's refuses text beside reasoning and calls.
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

/** What follows on the echo, all of it saying something. Results of the echo's calls bear their ids. */
export function createFollowingMessages({ echo, newShapes, past }: TemplateSignature): ChatMessage[] {
  const says = (shape: MessageShape): MessageShape => ({ ...shape, says: true })
  const ids = echo.toolCalls.map(({ id }) => id)
  return createDummyMessages(newShapes.map(says), FIRST_SENTINEL + past.length).map((message) =>
    message.role === 'tool' && ids.length > 0 ? { ...message, tool_call_id: ids.shift()! } : message,
  )
}
