/** What a call says of its own line, by a header of ours or in the words of an agent that is known. */
import { AGENT_ROLE_HEADER, type DeclaredRole, parseAgentRole } from './agent-role.ts'
import { CLAUDE_CODE_RULES } from './rules/claude-code.ts'
import { CODEX_RULES } from './rules/codex.ts'
import { KNOWN_PROMPT_RULES } from './rules/known-prompts.ts'
import { OPENCODE_RULES } from './rules/opencode.ts'
import { type AgentRoleRule, header, type RequestEvidence } from './rules/rule.ts'

export type { Headers } from './rules/rule.ts'

const explicit: AgentRoleRule = {
  name: 'header',
  find(call) {
    const line = header(call, AGENT_ROLE_HEADER)
    return line === undefined ? undefined : parseAgentRole(line)
  },
}

/** In the order in which they are asked; the first that says something is right. */
export const AGENT_ROLE_RULES: readonly AgentRoleRule[] = [
  explicit,
  ...CLAUDE_CODE_RULES,
  ...CODEX_RULES,
  ...OPENCODE_RULES,
  ...KNOWN_PROMPT_RULES,
]

/** As it is on record: `line` among a turn's annotations. */
export interface AgentRoleAnnotation {
  told: DeclaredRole
  rule: string
}

/**
 * @returns undefined when nothing tells: then the line is found by what the call continues
 * @throws ProxyError `invalid_request` for a header of ours that names no line
 */
export function findDeclaredRole(call: RequestEvidence): AgentRoleAnnotation | undefined {
  for (const { name, find } of AGENT_ROLE_RULES) {
    const stated = find(call)
    if (stated !== undefined) return { told: stated, rule: name }
  }
  return undefined
}
