/** Finds the open header or reasoning block of a truncated completion from the markup of its family. */
import { endsWithReasoningOpener } from './choose-parser.ts'
import type { OutputParserOptions, ParserFamily } from './output-parser.ts'

/** The state of the markup at the end of a truncated completion. */
export interface TruncationState {
  /** The missing end of the completion's last header; empty if it was not truncated in a header. */
  header: string
  /** The marker that must end the reasoning; undefined if the completion was not truncated in reasoning. */
  reasoningClose: string | undefined
  /** Whether the completion, with the end of its header, ends with a newline. */
  endsLine: boolean
}

/**
 * Determines where a completion was truncated. The caller adds the missing text, so that the turn can end as the
 * template ends it.
 * @param completion the text of the completion, including special tokens
 * @param head the end of the completion's prompt
 * @param tools the tools with which the completion was parsed; null: the parser did not look for tool calls
 */
export function findTruncationState(
  family: ParserFamily,
  completion: string,
  head: string,
  tools: OutputParserOptions['tools'],
): TruncationState {
  const { reasoning } = family
  const header =
    family.getMissingHeader?.(completion) ?? (reasoning ? getRestOfOpener(reasoning.open, completion) : '')
  const options = { tools, startsInReasoning: endsWithReasoningOpener(family, head) }
  const reasons = reasoning !== undefined && endsInReasoning(family, completion + header, options)
  return {
    header,
    reasoningClose: reasons ? reasoning.close : undefined,
    endsLine: /\n$/.test(completion + header),
  }
}

/** The next character of a truncated completion: one that is part of no marker. */
const NEXT_CHARACTER = '\0'

/**
 * Returns whether a completion ends inside reasoning. The family's parser decides, because its grammar recognizes the
 * opening marker only at the beginning: later, `<think>` is a word that the model writes about.
 */
function endsInReasoning(family: ParserFamily, completion: string, options: OutputParserOptions): boolean {
  const parser = family.create(options)
  parser.push(completion)
  return [parser.push(NEXT_CHARACTER), parser.finish()].some(({ reasoning }) => reasoning !== undefined)
}

/**
 * Returns the missing end of an opening marker of reasoning that consists of a token and words (Gemma 4's
 * `<|channel>thought`), if the completion consists of the marker's beginning; else an empty string.
 */
function getRestOfOpener(open: string, completion: string): string {
  const token = /^<[^>]+>/.exec(open)?.[0]
  const begun = completion.trimStart()
  return token !== undefined && begun.startsWith(token) && open.startsWith(begun)
    ? open.slice(begun.length)
    : ''
}
