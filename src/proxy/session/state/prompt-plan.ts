/** The plan of a chat request's prompt in token mode. */
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ImagePosition } from '../../tokens/images/prompt-images.ts'
import type { TemplateRejectionReason } from '../../tokens/prompt/template-rejection.ts'
import type { PrefixMatch } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'

/**
 * The way in which a prompt was built. `extended`: the recorded ids of an earlier turn, followed by new ones. `forked`:
 * the same, but another request has already continued that turn. All other prompts are rendered completely: `first`,
 * because no turn is cached; `branched`, because the request continues no turn; or because the template cannot extend
 * the recorded ids.
 */
export type PromptReason = 'extended' | 'forked' | 'first' | 'branched' | TemplateRejectionReason

/** The source of a prompt's ids. */
interface PromptOrigin {
  reason: PromptReason
  /** The id of the turn whose prompt and completion are the prefix of the prompt. Absent: there is none. */
  from?: string
  /** The number of that turn's tokens that the prompt reuses. */
  reusedTokens: number
  /** The number of tokens at the end of that turn that the prompt replaces with the template's. Absent: 0. */
  replacedTokens?: number
}

/** A planned prompt. */
export interface PromptPlan {
  ids: PromptIds
  origin: PromptOrigin
  /** The text before the completion; for an extended prompt, only that of the new ids. */
  text: string
  /** For a truncated message that is continued: its header and the text sampled so far. */
  prefix?: string
  match: PrefixMatch<SessionTurn>
  parent: SessionTurn | undefined
  /** The images in the order of their positions. */
  images: readonly ImagePosition[]
  /** The text of the final message, if the completion continues it. */
  textBefore?: string
}

/** The prompt of a request with several choices, which the first choice plans. */
export interface ChoicesPrompt {
  readonly requestId: string
  readonly planned: Promise<PromptPlan>
}
