/**
 * Finds messages that contain a word which their template searches for: a switch such as `/no_think`, or text that it
 * treats as its own markup. Such a text must reach the template unchanged; all other texts are equivalent to it.
 */
import { SideTable } from '../../../base/side-table.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'

/** The words that `python/template_words.py` finds. */
export interface TemplateWords {
  /** Words that are searched for in texts. */
  readonly inside: readonly string[]
  /** Texts that are compared with a complete text. */
  readonly whole: readonly string[]
}

/**
 * Whether a message contains such a word: each message is part of many requests, but is searched once. A process has
 * one template.
 */
const saysWord = new SideTable<Message, boolean>()

export class WordFinder {
  readonly #inside: RegExp | undefined
  readonly #full: ReadonlySet<string>

  constructor({ inside, whole: full }: TemplateWords) {
    // Arguments are JSON text. Templates may convert a text to lower case.
    const written = new Set(inside.flatMap((word) => [word, JSON.stringify(word).slice(1, -1)]))
    const pattern = [...written].map((word) => word.replaceAll(/\W/g, '\\$&')).join('|')
    this.#inside = written.size > 0 ? new RegExp(pattern, 'i') : undefined
    this.#full = new Set(full)
  }

  /** @param known the message in its session's conversation */
  isIn(message: ChatMessage, known?: Message): boolean {
    if (known === undefined) return this.#isContainedIn(message)
    return saysWord.get(known) ?? saysWord.attach(known, this.#isContainedIn(message))
  }

  #isContainedIn(message: ChatMessage): boolean {
    return getTexts(message).some((text) => this.#inside?.test(text) || this.#full.has(text.trim()))
  }
}

/** Returns a message's content as one text; undefined if it is empty. */
export function getMessageText({ content }: ChatMessage): string | undefined {
  return collectTexts(content).join('\n') || undefined
}

function getTexts(message: ChatMessage): string[] {
  const { content, reasoning_content, reasoning, tool_calls } = message as ChatMessage & TextFields
  const called = (tool_calls ?? []).flatMap(({ function: call }) => [call?.name, call?.arguments])
  return [...collectTexts(content), reasoning_content, reasoning, ...called].filter(isText)
}

interface TextFields {
  reasoning_content?: unknown
  reasoning?: unknown
  tool_calls?: readonly Partial<Pick<ToolCall & { type: 'function' }, 'function'>>[] | null
}

function collectTexts(content: unknown): string[] {
  if (!Array.isArray(content)) return isText(content) ? [content] : []
  return content.map((part) => part?.text ?? part?.refusal).filter(isText)
}

function isText(value: unknown): value is string {
  return typeof value === 'string'
}
