/** The conversation of an Anthropic request as canonical messages. `docs/dialects.md` lists these decisions. */
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { assistantMessage, systemMessage, toMessageContent } from '../common/messages.ts'
import { unsupported } from '../common/request-errors.ts'
import {
  type BlockWithPath,
  getReferencedTools,
  parseText,
  parseThinking,
  parseToolResult,
  parseToolUse,
  toContentParts,
  unsupportedBlock,
  withPaths,
} from './blocks.ts'
import type { CountTokensRequest, MessageParam, ToolParam } from './schema.ts'
import { formatServerToolResult } from './server-tool-results.ts'

/** What one side says until another one speaks. */
interface MessageGroup {
  role: MessageParam['role']
  messages: MessageWithPath[]
  /** Deferred tools that it is the first to refer to: once in a conversation their definitions are told. */
  found?: ReadonlyMap<string, ToolParam>
}

interface MessageWithPath {
  message: MessageParam
  index: number
  /** The system speaks in the middle of a conversation. */
  isReminder: boolean
}

/** How chat templates that want text join the parts of a message. */
const JOINT = '\n'

/**
 * Utterance by utterance: one that is known is not lowered again.
 * @returns the system message first, if there is one
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function lowerConversation(
  systemTexts: readonly string[],
  { messages, tools }: Pick<CountTokensRequest, 'messages' | 'tools'>,
  repeats: PartMemo,
): ChatMessage[] {
  const utterances = groupMessages(messages)
  const opening = utterances[0]?.role === 'system' ? getBlocks(utterances.shift()!).map(parseText) : undefined
  const system = [...systemTexts, ...(opening ?? [])].join(JOINT)
  const deferred = (tools ?? []).filter(({ defer_loading: isDeferred }) => isDeferred === true)
  const unseen = new Map(deferred.map((tool) => [tool.name ?? '', tool]))
  const conversation = utterances.flatMap((utterance) => {
    const last = utterance.messages.at(-1)!.message
    const found = takeReferencedTools(utterance, unseen)
    // What is first depends on all that is before it.
    return found.size > 0
      ? lowerGroup(last, { ...utterance, found })
      : repeats.once(lowerGroup, last, utterance)
  })
  return system === '' ? conversation : [repeats.once(systemMessage, system), ...conversation]
}

/** @param unseen what is found is taken out of it */
function takeReferencedTools({ role, messages }: MessageGroup, unseen: Map<string, ToolParam>) {
  const found = new Map<string, ToolParam>()
  if (unseen.size === 0 || role !== 'user') return found
  const blocks = messages.flatMap(({ message: { content } }) => (typeof content === 'string' ? [] : content))
  for (const name of blocks.flatMap(getReferencedTools)) {
    const tool = unseen.get(name)
    if (tool !== undefined) found.set(name, tool)
    unseen.delete(name)
  }
  return found
}

/** @param _last its last message, which says with all before it what the utterance is */
function lowerGroup(_last: MessageParam, utterance: MessageGroup): ChatMessage[] {
  const blocks = getBlocks(utterance)
  return utterance.role === 'assistant' ? [lowerAssistant(blocks)] : lowerUser(blocks, utterance.found)
}

function getBlocks({ messages }: MessageGroup): BlockWithPath[] {
  return messages.flatMap(({ message, index, isReminder }) => {
    const blocks = withPaths(message.content, `messages.${index}.content`)
    return isReminder ? blocks.map(asReminder) : blocks
  })
}

/** A completion that goes on inside a message would not be the whole of what the next call sends back. */
export function rejectPrefill(messages: readonly MessageParam[]): void {
  if (messages.at(-1)?.role !== 'assistant') return
  const message =
    'This model does not support assistant message prefill. The conversation must end with a user message.'
  throw unsupported(message, `messages.${messages.length - 1}.role`)
}

/** "Consecutive user or assistant turns in your request will be combined into a single turn." */
function groupMessages(messages: readonly MessageParam[]): MessageGroup[] {
  const utterances: MessageGroup[] = []
  let hasBegun = false
  for (const [index, message] of messages.entries()) {
    hasBegun ||= message.role !== 'system'
    const isReminder = message.role === 'system' && hasBegun
    const role = isReminder ? 'user' : message.role
    const placed = { message, index, isReminder }
    const last = utterances.at(-1)
    if (last?.role === role) last.messages.push(placed)
    else utterances.push({ role, messages: [placed] })
  }
  return utterances
}

/**
 * What the system says in mid-conversation, as Claude Code tells of its environment. Chat templates refuse a system
 * message there (Qwen3.5, Mistral, Gemma) or move it to the front (DeepSeek), where it would change a prompt that was
 * sampled from; so it is said on the user's side, in the tags that Claude Code itself has for that.
 */
function asReminder(placed: BlockWithPath): BlockWithPath {
  const text = `<system-reminder>\n${parseText(placed)}\n</system-reminder>`
  return { block: { type: 'text', text } as BlockWithPath['block'], at: placed.at }
}

/**
 * Results of tools come first, as the API demands of a client, and each is a message; what else is said is one more.
 */
function lowerUser(blocks: readonly BlockWithPath[], found: MessageGroup['found']): ChatMessage[] {
  const isResult = ({ block }: BlockWithPath) => block.type === 'tool_result'
  const answers = blocks.filter(isResult).map((placed) => {
    const { toolCallId, parts } = parseToolResult(placed, found)
    return { role: 'tool', tool_call_id: toolCallId, content: toMessageContent(parts) } as ChatMessage
  })
  const said = blocks.filter((placed) => !isResult(placed))
  if (said.length === 0 && answers.length > 0) return answers
  return [
    ...answers,
    { role: 'user', content: toMessageContent(said.flatMap(toContentParts)) } as ChatMessage,
  ]
}

/**
 * Joins texts without a separator, as the response's writer cuts them wherever reasoning or a tool call comes between.
 * Results of server tools stand between them on lines of their own. Redacted thinking is sealed for another model.
 */
function lowerAssistant(blocks: readonly BlockWithPath[]): ChatMessage {
  const texts: string[] = []
  const thoughts: string[] = []
  const toolCalls: ToolCall[] = []
  for (const placed of blocks) {
    const { type } = placed.block
    if (type === 'text') texts.push(parseText(placed))
    else if (type === 'thinking') thoughts.push(parseThinking(placed))
    else if (type === 'tool_use') toolCalls.push(parseToolUse(placed))
    else if (type.endsWith('_tool_result')) texts.push(serverToolLines(placed))
    else if (type !== 'redacted_thinking' && type !== 'server_tool_use') throw unsupportedBlock(placed)
  }
  return assistantMessage(texts.join(''), thoughts.join(''), toolCalls)
}

function serverToolLines({ block }: BlockWithPath): string {
  const text = formatServerToolResult(block)
  return text && `\n${text}\n`
}
