/**
 * Conversion of a Gemini request's conversation to canonical messages. `docs/dialects.md` lists the decisions made
 * here.
 */

import { createUnsupportedError } from '../../../base/errors.ts'
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { toJsonText } from '../common/json-text.ts'
import { buildAssistantMessage, buildSystemMessage, toMessageContent } from '../common/messages.ts'
import {
  createUnsupportedPartError,
  decodeSignature,
  type PartWithPath,
  parseFunctionCall,
  parseFunctionResponse,
  parseText,
  toContentParts,
  withPaths,
} from './parts.ts'
import type { Content } from './schema.ts'

/** Consecutive contents of the user, or of the model: a client may store one content for each chunk of a stream. */
interface ContentGroup {
  isModel: boolean
  contents: { content: Content; index: number }[]
}

/**
 * Lowers contents group by group. A group of an earlier request is not lowered again.
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function lowerContents(
  systemTexts: readonly string[],
  contents: readonly Content[],
  memo: PartMemo,
): ChatMessage[] {
  const system = systemTexts.join('\n')
  let toolCalls: ToolCall[] = []
  const conversation = groupContents(contents).flatMap((group) => {
    const last = group.contents.at(-1)!.content
    const lowered = memo.computeOnce(lowerGroup, last, group, toolCalls)
    toolCalls = getToolCalls(lowered.at(-1))
    return lowered
  })
  return system === '' ? conversation : [memo.computeOnce(buildSystemMessage, system), ...conversation]
}

/**
 * Rejects a prefilled model content: the completion would be only a part of the message that the next request sends
 * back.
 */
export function rejectPrefill(contents: readonly Content[]): void {
  if (contents.at(-1)?.role !== 'model') return
  const message = 'The conversation must end with a content of the user, not of the model'
  throw createUnsupportedError(message, `contents.${contents.length - 1}.role`)
}

function getToolCalls(message: ChatMessage | undefined): ToolCall[] {
  return message?.role === 'assistant' ? ((message.tool_calls ?? []) as ToolCall[]) : []
}

function groupContents(contents: readonly Content[]): ContentGroup[] {
  const groups: ContentGroup[] = []
  for (const [index, content] of contents.entries()) {
    const isModel = content.role === 'model'
    const last = groups.at(-1)
    if (last?.isModel === isModel) last.contents.push({ content, index })
    else groups.push({ isModel, contents: [{ content, index }] })
  }
  return groups
}

/**
 * Lowers a group.
 * @param _last the group's last content, by which `memo` identifies the group and all contents before it
 * @param toolCalls the tool calls before the group
 */
function lowerGroup(
  _last: Content,
  { isModel, contents }: ContentGroup,
  toolCalls: ToolCall[],
): ChatMessage[] {
  const parts = contents.flatMap(({ content, index }) => withPaths(content.parts ?? [], `contents.${index}`))
  return isModel ? [lowerModel(parts)] : lowerUser(parts, toolCalls)
}

/**
 * Lowers a user's contents: results of tool calls are separate messages and come first; other parts form one more
 * message.
 */
function lowerUser(parts: readonly PartWithPath[], toolCalls: readonly ToolCall[]): ChatMessage[] {
  const isResult = ({ part }: PartWithPath) => part.functionResponse !== undefined
  const pending = new PendingToolCalls(toolCalls)
  const results = removeDuplicateResults(
    parts.filter(isResult).map((placed) => {
      const { id, name, parts: shown } = parseFunctionResponse(placed)
      return {
        role: 'tool',
        tool_call_id: pending.takeId(id, name, placed.at),
        content: toMessageContent(shown),
      } as ChatMessage
    }),
  )
  const others = parts.filter((placed) => !isResult(placed))
  if (others.length === 0 && results.length > 0) return results
  return [
    ...results,
    { role: 'user', content: toMessageContent(others.flatMap(toContentParts)) } as ChatMessage,
  ]
}

/** Removes duplicates: Gemini CLI sends each result of a resumed session twice. */
function removeDuplicateResults(results: readonly ChatMessage[]): ChatMessage[] {
  return [...new Map(results.map((result) => [toJsonText(result), result])).values()]
}

/**
 * The tool calls to which results are assigned. Clients that omit ids send the results of a function in the order of
 * its calls.
 */
class PendingToolCalls {
  readonly #open = new Map<string, string[]>()
  readonly #ids: ReadonlySet<string>

  constructor(toolCalls: readonly ToolCall[]) {
    this.#ids = new Set(toolCalls.map(({ id }) => id))
    for (const { id, function: called } of toolCalls.toReversed()) {
      const ids = this.#open.get(called.name)
      if (ids) ids.push(id)
      else this.#open.set(called.name, [id])
    }
  }

  takeId(id: string | undefined, name: string | undefined, at: string): string {
    if (id && this.#ids.has(id)) return id
    return this.#open.get(name ?? '')?.pop() ?? (id || `result_${at}`)
  }
}

/**
 * Lowers a model's contents. Texts are concatenated, because the response writer splits them. The reasoning is the text
 * of the thoughts or, without them, that of the signatures: clients remove thoughts from a history but not signatures.
 */
function lowerModel(parts: readonly PartWithPath[]): ChatMessage {
  const texts: string[] = []
  const thoughts: string[] = []
  const signed: string[] = []
  const toolCalls: ToolCall[] = []
  for (const placed of parts) {
    const { part, at } = placed
    signed.push(decodeSignature(part.thoughtSignature))
    if (part.functionCall !== undefined) toolCalls.push(parseFunctionCall(placed, `call_${at}`))
    else if (part.thought === true) thoughts.push(part.text === undefined ? '' : parseText(placed))
    else if (part.text !== undefined) texts.push(parseText(placed))
    else if (part.thoughtSignature === undefined) throw createUnsupportedPartError(placed)
  }
  return buildAssistantMessage(texts.join(''), thoughts.join('') || signed.join(''), toolCalls)
}
