/** Finds the open header or reasoning block of a truncated completion from the markup of its family. */
import { endsWithReasoningOpener } from './choose-parser.ts'
import type { ParserFamily } from './output-parser.ts'

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
 */
export function findTruncationState(family: ParserFamily, completion: string, head: string): TruncationState {
  const { reasoning } = family
  const header =
    family.getMissingHeader?.(completion) ?? (reasoning ? getRestOfOpener(reasoning.open, completion) : '')
  const reasons = reasoning !== undefined && isInReasoning(family, completion + header, head)
  return {
    header,
    reasoningClose: reasons ? reasoning.close : undefined,
    endsLine: /\n$/.test(completion + header),
  }
}

/** Returns whether a completion ends inside a reasoning block. */
export function isInReasoning(family: ParserFamily, completion: string, head: string): boolean {
  if (family.reasoning === undefined) return false
  const { open, close } = family.reasoning
  if (completion.includes(open) || completion.includes(close))
    return completion.lastIndexOf(open) > completion.lastIndexOf(close)
  return endsWithReasoningOpener(family, head)
}

/**
 * Returns the missing end of an opening marker of reasoning that consists of a token and words (Gemma 4's
 * `<|channel>thought`), if the completion was truncated in the words; else an empty string.
 */
function getRestOfOpener(open: string, completion: string): string {
  const token = /^<[^>]+>/.exec(open)?.[0]
  const index = token === undefined ? -1 : completion.lastIndexOf(token)
  const begun = index === -1 ? '' : completion.slice(index)
  return begun !== '' && open.startsWith(begun) ? open.slice(begun.length) : ''
}
