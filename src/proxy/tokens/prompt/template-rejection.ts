/** Why the new part of a prompt cannot be rendered by itself. Stable names: callers count by them. */
export const TEMPLATE_REJECTIONS = [
  /** What the template writes behind an assistant's message has no special token where a new part could begin. */
  'no_end_of_turn',
  /** The completion ended with a token that opens another message than the next one. */
  'other_message_opened',
  /** The new messages change the text of what came before: tools or system messages that move. */
  'past_changes',
  /** The template raises an error, or does not show what was said. The full prompt will tell. */
  'template_refuses',
  /** The tokenizer does not keep the end of the turn and the text behind it apart. */
  'no_token_boundary',
] as const

export type TemplateRejectionReason = (typeof TEMPLATE_REJECTIONS)[number]

export interface TemplateRejection {
  refused: TemplateRejectionReason
}
