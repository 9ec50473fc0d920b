/** Prompts that cannot fit, whatever their tokens are: detected before rendering, which takes a minute for 15 MiB. */
import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'

/** The number of characters, of a message and those before it, that every template shows and no model sampled. */
const charsUpTo = new SideTable<Message, number>()

/**
 * The usual maximum length of a token: a text of at most this many characters per token of the context is not checked
 * further. Reading the vocabulary takes 50 ms, once.
 */
const USUAL_LONGEST_CHARS = 16

/**
 * Returns the error with vLLM's message; each dialect converts it. @param tokens the number of tokens, or a lower bound
 */
export function createTooLongError(
  contextLength: number | undefined,
  tokens: number,
  atLeast = '',
): ProxyError {
  const limit = `This model's maximum context length is ${contextLength} tokens.`
  const message = `${limit} However, your prompt contains ${atLeast}${tokens} input tokens.`
  return new ProxyError('context_length_exceeded', message)
}

/** @throws ProxyError `context_length_exceeded` */
export function rejectTooLong(
  model: Pick<TokenModel, 'contextLength' | 'servedLength' | 'getLongestTokenChars'>,
  last: Message | undefined,
): void {
  const contextLength = model.contextLength ?? model.servedLength
  if (contextLength === undefined || last === undefined) return
  const chars = countMessageChars(last)
  if (chars <= contextLength * USUAL_LONGEST_CHARS) return
  const atLeast = Math.ceil(chars / model.getLongestTokenChars())
  if (atLeast > contextLength) throw createTooLongError(contextLength, atLeast, 'at least ')
}

/** Counts in a loop, because a conversation may be ten thousand messages deep; each message is counted once. */
function countMessageChars(last: Message): number {
  const added: Message[] = []
  let current: Message | undefined = last
  while (current !== undefined && charsUpTo.of(current) === undefined) {
    added.push(current)
    current = current.parent
  }
  let chars = current === undefined ? 0 : charsUpTo.of(current)!
  for (const message of added.reverse()) {
    chars += countChars(message.value)
    charsUpTo.put(message, chars)
  }
  return chars
}

function countChars({ role, content }: ChatMessage): number {
  // Templates drop reasoning from older completions.
  if (role === 'assistant') return 0
  if (typeof content === 'string') return content.trim().length
  if (!Array.isArray(content)) return 0
  return content.reduce((sum, part) => sum + ('text' in part ? String(part.text).trim().length : 0), 0)
}
