/**
 * Conversion of an Anthropic request's conversation to canonical messages. `docs/dialects.md` lists the decisions made
 * here.
 */

import { createUnsupportedError } from '../../../base/errors.ts'
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { buildAssistantMessage, buildSystemMessage, toMessageContent } from '../common/messages.ts'
import {
  type BlockWithPath,
  createUnsupportedBlockError,
  getReferencedTools,
  parseText,
  parseThinking,
  parseToolResult,
  parseToolUse,
  toContentParts,
  withPaths,
} from './blocks.ts'
import type { CountTokensRequest, MessageParam, ToolParam } from './schema.ts'
import { formatServerToolResult } from './server-tool-results.ts'

/** Consecutive messages of one role; a system message in mid-conversation counts as one of the user. */
interface MessageGroup {
  role: MessageParam['role']
  messages: MessageWithIndex[]
  /**
   * Deferred tools, by name, that the group is the first to reference; a conversation contains their definitions once.
   */
  found?: ReadonlyMap<string, ToolParam>
}

/** A message, and its index in the request. */
interface MessageWithIndex {
  message: MessageParam
  index: number
  /** Whether it is a system message in the middle of a conversation. */
  isReminder: boolean
}

/** The separator with which chat templates that require text join the parts of a message. */
const JOINT = '\n'

/**
 * Lowers the conversation group by group. A group of an earlier request is not lowered again.
 * @returns the system message first, if there is one
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function lowerConversation(
  systemTexts: readonly string[],
  { messages, tools }: Pick<CountTokensRequest, 'messages' | 'tools'>,
  memo: PartMemo,
): ChatMessage[] {
  const groups = groupMessages(messages)
  const opening = groups[0]?.role === 'system' ? getBlocks(groups.shift()!).map(parseText) : undefined
  const system = [...systemTexts, ...(opening ?? [])].join(JOINT)
  const deferred = (tools ?? []).filter(({ defer_loading: isDeferred }) => isDeferred === true)
  const unseen = new Map(deferred.map((tool) => [tool.name ?? '', tool]))
  const conversation = groups.flatMap((group) => {
    const last = group.messages.at(-1)!.message
    const found = takeReferencedTools(group, unseen)
    // Not cached, because the definitions depend on the request's tools.
    return found.size > 0 ? lowerGroup(last, { ...group, found }) : memo.computeOnce(lowerGroup, last, group)
  })
  return system === '' ? conversation : [memo.computeOnce(buildSystemMessage, system), ...conversation]
}

/**
 * Returns the tools, by name, that a group is the first to reference.
 * @param unseen the tools without a reference so far; referenced ones are removed from it
 */
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

/**
 * Lowers a group.
 * @param _last the group's last message, by which `memo` identifies the group and all messages before it
 */
function lowerGroup(_last: MessageParam, group: MessageGroup): ChatMessage[] {
  const blocks = getBlocks(group)
  return group.role === 'assistant' ? [lowerAssistant(blocks)] : lowerUser(blocks, group.found)
}

function getBlocks({ messages }: MessageGroup): BlockWithPath[] {
  return messages.flatMap(({ message, index, isReminder }) => {
    const blocks = withPaths(message.content, `messages.${index}.content`)
    return isReminder ? blocks.map(toReminder) : blocks
  })
}

/**
 * Rejects a prefilled assistant message: the completion would be only a part of the message that the next request sends
 * back.
 */
export function rejectPrefill(messages: readonly MessageParam[]): void {
  if (messages.at(-1)?.role !== 'assistant') return
  const message =
    'This model does not support assistant message prefill. The conversation must end with a user message.'
  throw createUnsupportedError(message, `messages.${messages.length - 1}.role`)
}

/**
 * Groups messages as the API documents it: "Consecutive user or assistant turns in your request will be combined into a
 * single turn."
 */
function groupMessages(messages: readonly MessageParam[]): MessageGroup[] {
  const groups: MessageGroup[] = []
  let hasBegun = false
  for (const [index, message] of messages.entries()) {
    hasBegun ||= message.role !== 'system'
    const isReminder = message.role === 'system' && hasBegun
    const role = isReminder ? 'user' : message.role
    const placed = { message, index, isReminder }
    const last = groups.at(-1)
    if (last?.role === role) last.messages.push(placed)
    else groups.push({ role, messages: [placed] })
  }
  return groups
}

/**
 * Converts a system message in mid-conversation, in which Claude Code describes its environment. Chat templates reject
 * a system message there (Qwen3.5, Mistral, Gemma) or move it to the front (DeepSeek), where it would change a prompt
 * after which tokens were sampled. It therefore becomes a user's text, in the tags that Claude Code itself uses for
 * this purpose.
 */
function toReminder(placed: BlockWithPath): BlockWithPath {
  const text = `<system-reminder>\n${parseText(placed)}\n</system-reminder>`
  return { block: { type: 'text', text } as BlockWithPath['block'], at: placed.at }
}

/**
 * Lowers a user's blocks: results of tool calls come first, as the API requires of clients, each in a message; the
 * other blocks form one more message.
 */
function lowerUser(blocks: readonly BlockWithPath[], found: MessageGroup['found']): ChatMessage[] {
  const isResult = ({ block }: BlockWithPath) => block.type === 'tool_result'
  const results = blocks.filter(isResult).map((placed) => {
    const { toolCallId, parts } = parseToolResult(placed, found)
    return { role: 'tool', tool_call_id: toolCallId, content: toMessageContent(parts) } as ChatMessage
  })
  const others = blocks.filter((placed) => !isResult(placed))
  if (others.length === 0 && results.length > 0) return results
  return [
    ...results,
    { role: 'user', content: toMessageContent(others.flatMap(toContentParts)) } as ChatMessage,
  ]
}

/**
 * Lowers an assistant's blocks. Texts are joined without a separator, because the response writer splits them wherever
 * reasoning or a tool call comes between. Results of server tools are inserted on separate lines. Redacted thinking is
 * dropped, because only Anthropic's models can read it.
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
    else if (type.endsWith('_tool_result')) texts.push(formatServerToolBlock(placed))
    else if (type !== 'redacted_thinking' && type !== 'server_tool_use')
      throw createUnsupportedBlockError(placed)
  }
  return buildAssistantMessage(texts.join(''), thoughts.join(''), toolCalls)
}

/** Returns the text of a server tool's result on separate lines; empty if it has none. */
function formatServerToolBlock({ block }: BlockWithPath): string {
  const text = formatServerToolResult(block)
  return text && `\n${text}\n`
}
