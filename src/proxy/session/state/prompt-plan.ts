/** The prompt of a chat request in token mode, and how it was built. */
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ImagePosition } from '../../tokens/images/prompt-images.ts'
import type { TemplateRejectionReason } from '../../tokens/prompt/template-rejection.ts'
import type { PrefixMatch } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'

/**
 * How a prompt was built. `extended`: the recorded ids of an earlier turn, followed by the new part. `forked`: the
 * same, but another request has already continued that turn. All others are rendered in full: `first`, nothing is
 * recorded yet; `branched`, no recorded turn is a prefix of this request; and the reasons why the template's new part
 * cannot be rendered alone.
 */
export type PromptReason = 'extended' | 'forked' | 'first' | 'branched' | TemplateRejectionReason

interface PromptOrigin {
  reason: PromptReason
  /** The turn whose prompt and completion are the prefix of the prompt. */
  from?: string
  /** The number of tokens of that turn, without the replaced ones. */
  reusedTokens: number
  /** The number of sampled tokens at its end that the prompt replaces: the end of a turn. Absent: none. */
  replacedTokens?: number
}

export interface PromptPlan {
  ids: PromptIds
  origin: PromptOrigin
  /** The text that precedes the completion; for an extended prompt only the new part. */
  text: string
  /** For a truncated completion that is continued: the head of its turn, and the text sampled so far. */
  prefix?: string
  match: PrefixMatch<SessionTurn>
  parent: SessionTurn | undefined
  /** The images in the order of the prompt. */
  images: readonly ImagePosition[]
  /** The assistant message's text before the completion; absent: none. */
  textBefore?: string
}

/** The prompt of a request for several completions, planned once, by the first of them. */
export interface ChoicesPrompt {
  readonly requestId: string
  readonly planned: Promise<PromptPlan>
}
