/**
 * Sealed reasoning, which agents return unread, so that it is part of the model's next prompt: the signature of
 * Anthropic's thinking blocks, for an agent that requests them without text (`thinking.display: "omitted"`, as Claude
 * Code does without a terminal), OpenAI's `encrypted_content` and Gemini's `thoughtSignature`. It is not secret, only
 * encoded in a form that no agent changes.
 */

const MARK = 'llm-proxy'
const SEALED = `${MARK}:`

/** A signature without content. It is not verified, but clients return only thinking blocks that have a signature. */
export const SIGNATURE = MARK

export function seal(reasoning: string): string {
  return SEALED + Buffer.from(reasoning).toString('base64url')
}

/** Returns the reasoning; undefined for text that this proxy did not seal, such as that of another provider. */
export function unseal(sealed: string): string | undefined {
  return sealed.startsWith(SEALED)
    ? Buffer.from(sealed.slice(SEALED.length), 'base64url').toString()
    : undefined
}
