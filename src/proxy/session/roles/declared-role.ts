/** Finds the role that a request declares, by the proxy's header or by the conventions of a known agent. */
import { AGENT_ROLE_HEADERS, type DeclaredAgentRole, parseAgentRole } from './agent-role.ts'
import { CLAUDE_CODE_RULES } from './rules/claude-code.ts'
import { CODEX_RULES } from './rules/codex.ts'
import { KNOWN_PROMPT_RULES } from './rules/known-prompts.ts'
import { OPENCODE_RULES } from './rules/opencode.ts'
import { type AgentRoleRule, findHeader, type RequestEvidence } from './rules/rule.ts'

export type { RequestHeaders as Headers } from './rules/rule.ts'

const explicit: AgentRoleRule = {
  name: 'header',
  find(evidence) {
    for (const name of AGENT_ROLE_HEADERS) {
      const role = findHeader(evidence, name)
      if (role !== undefined) return parseAgentRole(role, name)
    }
    return undefined
  },
}

/** The rules for declared roles in order of precedence: the first one that returns a role applies. */
export const AGENT_ROLE_RULES: readonly AgentRoleRule[] = [
  explicit,
  ...CLAUDE_CODE_RULES,
  ...CODEX_RULES,
  ...OPENCODE_RULES,
  ...KNOWN_PROMPT_RULES,
]

/** The recorded form: `line` in a turn's annotations. */
export interface AgentRoleAnnotation {
  told: DeclaredAgentRole
  rule: string
}

/**
 * Returns the declared role of a request and its rule.
 * @returns undefined if no rule applies: the role is then inferred from earlier turns
 * @throws ProxyError `invalid_request` for an unknown role in the proxy's header
 */
export function findDeclaredRole(evidence: RequestEvidence): AgentRoleAnnotation | undefined {
  for (const { name, find } of AGENT_ROLE_RULES) {
    const stated = find(evidence)
    if (stated !== undefined) return { told: stated, rule: name }
  }
  return undefined
}
