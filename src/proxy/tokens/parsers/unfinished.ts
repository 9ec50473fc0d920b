/** Finds the open header or reasoning block of a truncated completion, by the markup of its family. */
import { opensReasoning } from './choose-parser.ts'
import type { ParserFamily } from './output-parser.ts'

export interface CutOffState {
  /** The missing end of its last header; empty if it was not truncated in a header. */
  header: string
  /** The marker that ends its reasoning; undefined if it was not truncated in reasoning. */
  reasoningClose: string | undefined
  /** Whether it ended with a line break. */
  endsLine: boolean
}

/**
 * Returns where a completion was truncated: in a header, in reasoning or in a line. The caller adds the missing text, so
 * that the turn can end as the template ends it.
 * @param completion the text of the completion, including special tokens
 * @param head the end of its prompt
 */
export function findCutOffState(family: ParserFamily, completion: string, head: string): CutOffState {
  const { reasoning } = family
  const header =
    family.headerRest?.(completion) ?? (reasoning ? getRestOfOpener(reasoning.open, completion) : '')
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
  return opensReasoning(family, head)
}

/**
 * Returns the missing end of an opening marker that consists of a token and words (Gemma 4's `<|channel>thought`), if
 * the completion was truncated in the words.
 */
function getRestOfOpener(open: string, completion: string): string {
  const token = /^<[^>]+>/.exec(open)?.[0]
  const index = token === undefined ? -1 : completion.lastIndexOf(token)
  const begun = index === -1 ? '' : completion.slice(index)
  return begun !== '' && open.startsWith(begun) ? open.slice(begun.length) : ''
}
