/** Detects prompts that certainly exceed the context, before they are rendered: rendering 15 MiB takes a minute. */
import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'

/**
 * For each message, the number of characters in the conversation up to it that every template renders and no model
 * sampled.
 */
const charsUpTo = new SideTable<Message, number>()

/**
 * The usual maximum number of characters of a token. A conversation with at most this many characters per token of the
 * context is not checked against the vocabulary, because reading the vocabulary takes 50 ms, once.
 */
const USUAL_LONGEST_CHARS = 16

/**
 * Creates the error with vLLM's message, which each dialect converts.
 * @param tokens the number of tokens of the prompt, or a lower bound
 * @param atLeast precedes a lower bound in the message
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

/**
 * Rejects a conversation with more characters than the context's tokens can have.
 * @throws ProxyError `context_length_exceeded`
 */
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

/**
 * Counts the characters up to a message. Each message is counted once, in a loop, because a recursion of ten thousand
 * messages would exceed the stack.
 */
function countMessageChars(last: Message): number {
  const added: Message[] = []
  let current: Message | undefined = last
  while (current !== undefined && charsUpTo.get(current) === undefined) {
    added.push(current)
    current = current.parent
  }
  let chars = current === undefined ? 0 : charsUpTo.get(current)!
  for (const message of added.reverse()) {
    chars += countChars(message.value)
    charsUpTo.attach(message, chars)
  }
  return chars
}

function countChars({ role, content }: ChatMessage): number {
  // Templates may drop parts of completions, such as reasoning.
  if (role === 'assistant') return 0
  if (typeof content === 'string') return content.trim().length
  if (!Array.isArray(content)) return 0
  return content.reduce((sum, part) => sum + ('text' in part ? String(part.text).trim().length : 0), 0)
}
