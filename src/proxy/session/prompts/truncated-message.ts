/** Finds where a sampled message was truncated, so that a later prompt can end or continue it. */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { findTruncationState, type TruncationState } from '../../tokens/parsers/unfinished.ts'
import type { PromptRenderer } from '../../tokens/prompt/prompt-renderer.ts'
import type { SessionTurn } from '../matching/session-turns.ts'
import { readText } from './restore-sampled.ts'

/** Returns whether the completion after a prompt was truncated, so that its message has no end token. */
export function isTruncated({ completion }: PromptIds, renderer: PromptRenderer): boolean {
  return completion.length > 0 && !renderer.endsTurn(completion.at(-1))
}

/**
 * Finds the state in which a turn's message was truncated, such as an open reasoning block.
 * @param request the message as the next request echoes it, and the tools of both requests
 */
export function findTruncation(
  { prompt }: SessionTurn,
  { tokenizer, parser, renderer }: Pick<TokenModel, 'tokenizer' | 'parser' | 'renderer'>,
  { echo, tools }: { echo: ChatMessage; tools: ChatBody['tools'] },
): TruncationState {
  const begin = findMessageBegin(prompt, renderer)
  const completion = tokenizer.decode(prompt.slice(begin, prompt.tokenCount))
  const head = tokenizer.decode(prompt.slice(Math.max(0, begin - HEAD_TOKENS), begin))
  return findTruncationState(parser, completion, head, isWithoutOutput(echo) ? null : tools)
}

/** Returns the text of a turn's message, preceded by the end of the text before it. */
export function decodeMessage(
  { prompt }: SessionTurn,
  { tokenizer, renderer }: Pick<TokenModel, 'tokenizer' | 'renderer'>,
): string {
  const begin = findMessageBegin(prompt, renderer)
  return tokenizer.decode(prompt.slice(Math.max(0, begin - HEAD_TOKENS), prompt.tokenCount))
}

/**
 * The number of tokens that certainly includes the header of an assistant message and the marker of an open reasoning
 * block.
 */
const HEAD_TOKENS = 16

/**
 * Returns the index of a message's first sampled token. The completion may be only the message's end: the prompt of a
 * request that continues a truncated message is an earlier prompt and its completion.
 */
function findMessageBegin(prompt: PromptIds, renderer: PromptRenderer): number {
  let first = prompt
  for (;;) {
    const { base, rest, shared } = first
    const continues = base !== undefined && rest.length === 0 && shared === base.tokenCount
    if (!continues || !isTruncated(base, renderer)) return first.length
    first = base
  }
}

/**
 * Returns whether a message has neither content nor tool calls. No tool call ended its reasoning then, even if there is
 * one in it: the request may have forbidden tool calls with `tool_choice`, which is not recorded.
 */
function isWithoutOutput(echo: ChatMessage): boolean {
  const hasCalls = echo.role === 'assistant' && (echo.tool_calls?.length ?? 0) > 0
  return !hasCalls && readText(echo) === ''
}
