/**
 * Anthropic's words for a prompt that does not fit. Claude Code compacts its talk when it reads
 * `prompt is too long: 205123 tokens > 200000 maximum`, and asks for less when it reads ``input length and
 * `max_tokens` exceed context limit: 188240 + 21333 > 200000``.
 */
import type { ContextOverflow } from '../common/context-overflow.ts'

/** @param message what the engine said: all that there is to say where it tells no numbers */
export function overflowWords({ limit, prompt, completion }: ContextOverflow, message: string): string {
  if (prompt === undefined) return `prompt is too long: ${message}`
  if (completion !== undefined && prompt < limit) {
    return (
      `input length and \`max_tokens\` exceed context limit: ${prompt} + ${completion} > ${limit}, ` +
      'decrease input length or `max_tokens` and try again'
    )
  }
  return `prompt is too long: ${prompt} tokens > ${limit} maximum`
}
