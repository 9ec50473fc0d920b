/**
 * The reasons why the new part of a prompt cannot be rendered alone. The names do not change, because metrics use them.
 */
export const TEMPLATE_REJECTIONS = [
  /** The template writes no special token after an assistant message where a new part could begin. */
  'no_end_of_turn',
  /** The new messages change the text of earlier messages: tools or system messages move. */
  'past_changes',
  /** The template raises an error, or does not render the contents. Rendering the complete prompt reports the error. */
  'template_refuses',
  /** The tokenizer merges the end of the turn with the text after it. */
  'no_token_boundary',
] as const

export type TemplateRejectionReason = (typeof TEMPLATE_REJECTIONS)[number]

/** The result in place of a new part that cannot be rendered alone. */
export interface TemplateRejection {
  refused: TemplateRejectionReason
}
