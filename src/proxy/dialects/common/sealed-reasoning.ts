/**
 * Reasoning that an agent returns unread: the signature of Anthropic's thinking blocks, whose text an agent that
 * requests `thinking.display: "omitted"` (Claude Code without a terminal) does not receive, and OpenAI's
 * `encrypted_content`. Here it is not secret, only encoded in a form that no agent changes. The model's reasoning is
 * thus part of its next prompt.
 */

const MARK = 'llm-proxy'
const SEALED = `${MARK}:`

/** A signature without content, which is never verified: clients return thinking blocks only with a signature. */
export const SIGNATURE = MARK

export function seal(reasoning: string): string {
  return SEALED + Buffer.from(reasoning).toString('base64url')
}

/** @returns undefined for text that this proxy did not seal: another model's reasoning stays sealed */
export function unseal(sealed: string): string | undefined {
  return sealed.startsWith(SEALED)
    ? Buffer.from(sealed.slice(SEALED.length), 'base64url').toString()
    : undefined
}
