/** What a call says of its own line, by a header of ours or in the words of an agent that is known. */
import { LINE_HEADER, parseLine, type StatedLine } from './line.ts'
import { CLAUDE_CODE_RULES } from './rules/claude-code.ts'
import { CODEX_RULES } from './rules/codex.ts'
import { KNOWN_PROMPT_RULES } from './rules/known-prompts.ts'
import { OPENCODE_RULES } from './rules/opencode.ts'
import { type CallEvidence, header, type LineRule } from './rules/rule.ts'

export type { Headers } from './rules/rule.ts'

const explicit: LineRule = {
  name: 'header',
  find(call) {
    const line = header(call, LINE_HEADER)
    return line === undefined ? undefined : parseLine(line)
  },
}

/** In the order in which they are asked; the first that says something is right. */
export const LINE_RULES: readonly LineRule[] = [
  explicit,
  ...CLAUDE_CODE_RULES,
  ...CODEX_RULES,
  ...OPENCODE_RULES,
  ...KNOWN_PROMPT_RULES,
]

/** As it is on record: `line` among a turn's annotations. */
export interface LineOnRecord {
  told: StatedLine
  rule: string
}

/**
 * @returns undefined when nothing tells: then the line is found by what the call continues
 * @throws ProxyError `invalid_request` for a header of ours that names no line
 */
export function statedLine(call: CallEvidence): LineOnRecord | undefined {
  for (const { name, find } of LINE_RULES) {
    const stated = find(call)
    if (stated !== undefined) return { told: stated, rule: name }
  }
  return undefined
}
