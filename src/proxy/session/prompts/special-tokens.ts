/**
 * The annotation of special tokens in the texts of a request. A text that contains `<|im_end|>` ends its message for
 * the model, as in vLLM. The recorded prompt is exact, but a user or a tool result may have injected messages.
 */
import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { getContentTexts } from '../../tokens/templates/template-words.ts'
import { AddedTokenFinder } from '../../tokens/tokenizer/added-tokens.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'

/** A special token in the text of a message. The field names are those on the wire. */
export interface SpecialTokenInText {
  /** The index of the message in the request, from 0. */
  message: number
  role: string
  token: string
  /** The number of its occurrences in the message. */
  count: number
}

/** The maximum number of listed tokens: more would not help a reader. */
const MAX_LISTED = 32

/**
 * The numbers of occurrences of each special token by message: a message is part of many requests, but is searched
 * once. The table does not distinguish tokenizers, because a process has one.
 */
const countsByMessage = new SideTable<Message, ReadonlyMap<string, number>>()
const NONE: ReadonlyMap<string, number> = new Map()

/** A search for special tokens in the messages of requests. */
export class SpecialTokenFinder {
  readonly #finder: AddedTokenFinder

  /**
   * Creates a finder of the tokenizer's special tokens, and of other added tokens that occur in the template:
   * tokenizers do not declare `<tool_call>` as special, nor DeepSeek's role markers.
   */
  constructor(tokenizer: Pick<Tokenizer, 'addedTokens' | 'isSpecial'>, templateSource: string) {
    const isMarkup = ([text, id]: [string, number]) =>
      tokenizer.isSpecial(id) || (text.trim() !== '' && templateSource.includes(text))
    this.#finder = new AddedTokenFinder(new Map([...tokenizer.addedTokens].filter(isMarkup)))
  }

  /**
   * Returns the special tokens in messages that no model sampled.
   * @param last the last message of the request
   * @param from the number of messages that an earlier turn has already reported
   */
  find(last: Message | undefined, from: number): SpecialTokenInText[] {
    return getMessagesBetween(undefined, last, ({ depth }) => depth <= from)
      .flatMap((message) => {
        const { role } = message.value
        const counts =
          countsByMessage.get(message) ?? countsByMessage.attach(message, this.#count(message.value))
        return [...counts].map(([token, count]) => ({ message: message.depth - 1, role, token, count }))
      })
      .slice(0, MAX_LISTED)
  }

  #count(message: ChatMessage): ReadonlyMap<string, number> {
    if (message.role === 'assistant') return NONE
    const texts = getContentTexts(message.content)
    // Some templates write the name or the call's id into the header of the message.
    const { name, tool_call_id: callId } = message as { name?: unknown; tool_call_id?: unknown }
    const headers = [name, callId].filter((field) => typeof field === 'string')
    const counts = this.#countIn([...texts, ...headers])
    // Templates may write the texts of a message's parts without a separator, so a token may be in several of them.
    const joined = texts.length > 1 ? this.#countIn([texts.join('')]) : NONE
    for (const [token, count] of joined) counts.set(token, Math.max(count, counts.get(token) ?? 0))
    return counts.size === 0 ? NONE : counts
  }

  #countIn(texts: readonly string[]): Map<string, number> {
    const counts = new Map<string, number>()
    for (const text of texts) {
      for (const { begin, end } of this.#finder.find(text)) {
        const token = text.slice(begin, end)
        counts.set(token, (counts.get(token) ?? 0) + 1)
      }
    }
    return counts
  }
}

/** Rejects a request with special tokens in its texts. @throws ProxyError `invalid_request` if there is one */
export function rejectSpecialTokens([found]: readonly SpecialTokenInText[]): void {
  if (found === undefined) return
  throw new ProxyError(
    'invalid_request',
    `message ${found.message}, of the role ${found.role}, contains ${found.token}, which the model would read as a ` +
      'special token, not as text; --special-tokens-in-text allow permits it',
    { param: 'messages', logMessage: `message ${found.message} contains a special token` },
  )
}

/** Returns the distinct tokens in a recorded turn's annotation. */
export function readSpecialTokens({ annotations }: { annotations: string }): string[] {
  // Most turns have no such annotation, so parsing is skipped.
  if (!annotations.includes('"special_tokens_in_text"')) return []
  const { special_tokens_in_text: found = [] } = JSON.parse(annotations) as SpecialTokensAnnotation
  return [...new Set(found.map(({ token }) => token))]
}

interface SpecialTokensAnnotation {
  special_tokens_in_text?: SpecialTokenInText[]
}
