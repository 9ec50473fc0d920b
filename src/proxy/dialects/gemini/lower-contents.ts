/** The conversation of a Gemini request as canonical messages. `docs/dialects.md` lists these decisions. */
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { toJsonText } from '../common/json-text.ts'
import { assistantMessage, systemMessage, toMessageContent } from '../common/messages.ts'
import { unsupported } from '../common/request-errors.ts'
import {
  decodeSignature,
  type PartWithPath,
  parseFunctionCall,
  parseFunctionResponse,
  parseText,
  toContentParts,
  unsupportedPart,
  withPaths,
} from './parts.ts'
import type { Content } from './schema.ts'

/** What one side says until the other one speaks: streams leave a content for each chunk in a client's history. */
interface ContentGroup {
  isModel: boolean
  contents: { content: Content; index: number }[]
}

/**
 * Utterance by utterance: one that is known is not lowered again.
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function lowerContents(
  systemTexts: readonly string[],
  contents: readonly Content[],
  repeats: PartMemo,
): ChatMessage[] {
  const system = systemTexts.join('\n')
  let asked: ToolCall[] = []
  const conversation = groupContents(contents).flatMap((utterance) => {
    const last = utterance.contents.at(-1)!.content
    const lowered = repeats.once(lowerGroup, last, utterance, asked)
    asked = getToolCalls(lowered.at(-1))
    return lowered
  })
  return system === '' ? conversation : [repeats.once(systemMessage, system), ...conversation]
}

/** A completion that goes on inside a message would not be the whole of what the next call sends back. */
export function rejectPrefill(contents: readonly Content[]): void {
  if (contents.at(-1)?.role !== 'model') return
  const message = 'The conversation must end with a content of the user, not of the model'
  throw unsupported(message, `contents.${contents.length - 1}.role`)
}

function getToolCalls(message: ChatMessage | undefined): ToolCall[] {
  return message?.role === 'assistant' ? ((message.tool_calls ?? []) as ToolCall[]) : []
}

function groupContents(contents: readonly Content[]): ContentGroup[] {
  const utterances: ContentGroup[] = []
  for (const [index, content] of contents.entries()) {
    const isModel = content.role === 'model'
    const last = utterances.at(-1)
    if (last?.isModel === isModel) last.contents.push({ content, index })
    else utterances.push({ isModel, contents: [{ content, index }] })
  }
  return utterances
}

/** @param _last its last content, which says with all before it what the utterance is @param asked calls before it */
function lowerGroup(_last: Content, { isModel, contents }: ContentGroup, asked: ToolCall[]): ChatMessage[] {
  const parts = contents.flatMap(({ content, index }) => withPaths(content.parts ?? [], `contents.${index}`))
  return isModel ? [lowerModel(parts)] : lowerUser(parts, asked)
}

/** Results of calls are messages of their own, and come first; what else is said is one more. */
function lowerUser(parts: readonly PartWithPath[], asked: readonly ToolCall[]): ChatMessage[] {
  const isResult = ({ part }: PartWithPath) => part.functionResponse !== undefined
  const answered = new PendingToolCalls(asked)
  const results = distinct(
    parts.filter(isResult).map((placed) => {
      const { id, name, parts: shown } = parseFunctionResponse(placed)
      return {
        role: 'tool',
        tool_call_id: answered.takeId(id, name, placed.at),
        content: toMessageContent(shown),
      } as ChatMessage
    }),
  )
  const said = parts.filter((placed) => !isResult(placed))
  if (said.length === 0 && results.length > 0) return results
  return [
    ...results,
    { role: 'user', content: toMessageContent(said.flatMap(toContentParts)) } as ChatMessage,
  ]
}

/** Gemini CLI sends each result of a session that it resumes twice: equal results of one call are one result. */
function distinct(results: readonly ChatMessage[]): ChatMessage[] {
  return [...new Map(results.map((result) => [toJsonText(result), result])).values()]
}

/** Which call a result is of: clients that leave ids out answer in the order in which calls of a name were made. */
class PendingToolCalls {
  readonly #open = new Map<string, string[]>()
  readonly #ids: ReadonlySet<string>

  constructor(asked: readonly ToolCall[]) {
    this.#ids = new Set(asked.map(({ id }) => id))
    for (const { id, function: called } of asked.toReversed()) {
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
 * Texts are joined without a seam, as the answer's writer cuts them. Reasoning is what thoughts say, else what the
 * signatures hold: clients leave thoughts out of a history and keep the signatures.
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
    else if (part.thoughtSignature === undefined) throw unsupportedPart(placed)
  }
  return assistantMessage(texts.join(''), thoughts.join('') || signed.join(''), toolCalls)
}
