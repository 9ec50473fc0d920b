/** The prompt of a chat call in token mode, and how it came about. */
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ImagePosition } from '../../tokens/images/prompt-images.ts'
import type { TemplateRejectionReason } from '../../tokens/prompt/template-rejection.ts'
import type { PrefixMatch } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'

/**
 * `extended`: the recorded ids of an earlier turn, and then only what is new. `forked`: the same, where another call
 * has continued that turn before. Everything else is rendered whole: `first`, nothing is recorded yet; `branched`, no
 * recorded turn begins like this call; and the reasons why the template's new part cannot be rendered by itself.
 */
export type PromptReason = 'extended' | 'forked' | 'first' | 'branched' | TemplateRejectionReason

interface PromptOrigin {
  reason: PromptReason
  /** The turn whose prompt and completion the prompt begins with. */
  from?: string
  /** How many tokens are that turn's. */
  reusedTokens: number
}

export interface PlannedPrompt {
  ids: PromptIds
  origin: PromptOrigin
  /** The text that the completion follows; of an extended prompt only its new part. */
  text: string
  /** Of an answer that goes on where it was cut off: the head of its turn, and what was sampled of it. */
  prefix?: string
  call: PrefixMatch<SessionTurn>
  parent: SessionTurn | undefined
  /** In the order of the prompt; empty: it has none. */
  images: readonly ImagePosition[]
  /** What the assistant's message says before the completion; absent: nothing. */
  saidBefore?: string
}

/** The prompt of a call that asks for several answers: planned once, by whichever of them comes first. */
export interface ChoicesPrompt {
  readonly call: string
  readonly planned: Promise<PlannedPrompt>
}
