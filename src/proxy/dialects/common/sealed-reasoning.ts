/**
 * Reasoning that an agent carries along and gives back without having read it: the signature of Anthropic's thinking
 * blocks, of which an agent that asks for `thinking.display: "omitted"` (Claude Code without a terminal) gets no text,
 * and OpenAI's `encrypted_content`. So it is here, but for the secrecy: it is only text in a form that no agent
 * changes. What the model thought comes back, and its next prompt goes on from it.
 */

const MARK = 'llm-proxy'
const SEALED = `${MARK}:`

/** A signature that says nothing, and that nobody checks: clients send thinking back only with one. */
export const SIGNATURE = MARK

export function seal(reasoning: string): string {
  return SEALED + Buffer.from(reasoning).toString('base64url')
}

/** @returns undefined for what is not of ours: what another model thought stays sealed */
export function unseal(sealed: string): string | undefined {
  return sealed.startsWith(SEALED)
    ? Buffer.from(sealed.slice(SEALED.length), 'base64url').toString()
    : undefined
}
