/**
 * Finds messages that contain a word which their template searches for: a switch such as `/no_think`, or text that the
 * template treats as its own markup. Such messages must reach the template unchanged. Any other text can be replaced by
 * a sentinel without changing the rest of the prompt.
 */
import { SideTable } from '../../../base/side-table.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'

/** The words that `python/template_words.py` finds in a template. */
export interface TemplateWords {
  /** Words that are searched for in texts. */
  readonly inside: readonly string[]
  /** Words that are compared with complete texts. */
  readonly whole: readonly string[]
}

/**
 * Whether a message contains such a word. The result is cached, because a message is part of many requests; it does not
 * depend on the finder, because a process has one template.
 */
const saysWord = new SideTable<Message, boolean>()

/** A search for the words of a template in messages. */
export class WordFinder {
  readonly #inside: RegExp | undefined
  readonly #full: ReadonlySet<string>

  constructor({ inside, whole: full }: TemplateWords) {
    // Tool arguments contain words in JSON's notation. Templates may convert a text to lower case.
    const written = new Set(inside.flatMap((word) => [word, JSON.stringify(word).slice(1, -1)]))
    const pattern = [...written].map((word) => word.replaceAll(/\W/g, '\\$&')).join('|')
    this.#inside = written.size > 0 ? new RegExp(pattern, 'i') : undefined
    this.#full = new Set(full)
  }

  /**
   * Returns whether a message contains a word of the template.
   * @param known the message in its session's conversation, to which the result is attached
   */
  isIn(message: ChatMessage, known?: Message): boolean {
    if (known === undefined) return this.#isContainedIn(message)
    return saysWord.get(known) ?? saysWord.attach(known, this.#isContainedIn(message))
  }

  #isContainedIn(message: ChatMessage): boolean {
    return getTexts(message).some((text) => this.#inside?.test(text) || this.#full.has(text.trim()))
  }
}

/** Returns the text of a message's content; undefined if it is empty. */
export function getMessageText({ content }: ChatMessage): string | undefined {
  return getContentTexts(content).join('\n') || undefined
}

function getTexts(message: ChatMessage): string[] {
  const { content, reasoning_content, reasoning, tool_calls } = message as ChatMessage & TextFields
  const called = (tool_calls ?? []).flatMap(({ function: call }) => [call?.name, call?.arguments])
  const texts = getContentTexts(content)
  // Templates join the texts of a message's parts, or the proxy does, so a word may be in several of them.
  const joined = texts.length > 1 ? [texts.join(''), texts.join('\n')] : []
  return [...texts, ...joined, reasoning_content, reasoning, ...called].filter(isText)
}

/** The fields of a message that contain text besides its content. */
interface TextFields {
  reasoning_content?: unknown
  reasoning?: unknown
  tool_calls?: readonly Partial<Pick<ToolCall & { type: 'function' }, 'function'>>[] | null
}

/** Returns the texts of a message's content that a template renders, as `to_part` of `template_messages.py` does. */
export function getContentTexts(content: unknown): string[] {
  if (!Array.isArray(content)) return isText(content) ? [content] : []
  return content.map((part) => (part?.type === 'refusal' ? part.refusal : part?.text)).filter(isText)
}

function isText(value: unknown): value is string {
  return typeof value === 'string'
}
