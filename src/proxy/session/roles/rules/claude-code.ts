/**
 * Rules for Claude Code (observed: 2.1.330). Each request of a sub-agent has the sub-agent's id in a header. Other
 * purposes are declared in `x-claude-code-request-class`, but only with `CLAUDE_CODE_GATEWAY_HINT_HEADERS=1` in the
 * agent's environment; without it, the rules recognize known requests by their text.
 */
import type { DeclaredAgentRole } from '../agent-role.ts'
import { getSubagentRole } from '../agent-role.ts'
import {
  type AgentRoleRule,
  findHeader,
  getLastUserText,
  getMessages,
  getText,
  hasTools,
  isAgent,
  type RequestEvidence,
} from './rule.ts'

const AGENT_ID = 'x-claude-code-agent-id'

const ROLE_BY_CLASS: ReadonlyMap<string | undefined, DeclaredAgentRole> = new Map([
  ['main', 'main'],
  ['subagent', 'subagent'],
  ['workflow', 'subagent'],
  ['compaction', 'compaction'],
  ['auxiliary', 'side'],
  ['side_reply', 'side'],
])

const isClaudeCode = (evidence: RequestEvidence) => isAgent(evidence, /^claude-cli\//)

const requestClass: AgentRoleRule = {
  name: 'claude_code_request_class',
  find(evidence) {
    const line = ROLE_BY_CLASS.get(findHeader(evidence, 'x-claude-code-request-class'))
    const agentId = findHeader(evidence, AGENT_ID)
    // The compaction of a sub-agent belongs to the sub-agent's role.
    return agentId !== undefined && line !== undefined && line !== 'side' ? getSubagentRole(agentId) : line
  },
}

const agentId: AgentRoleRule = {
  name: 'claude_code_agent_id',
  find(evidence) {
    const id = findHeader(evidence, AGENT_ID)
    return id === undefined ? undefined : getSubagentRole(id)
  },
}

const compactionPrompt: AgentRoleRule = {
  name: 'claude_code_compaction_prompt',
  find: (evidence) =>
    isClaudeCode(evidence) &&
    /^CRITICAL: Respond with TEXT ONLY\. Do NOT call any tools\./m.test(getLastUserText(evidence))
      ? 'compaction'
      : undefined,
}

const quotaProbe: AgentRoleRule = {
  name: 'claude_code_quota_probe',
  find(evidence) {
    const [only, ...others] = getMessages(evidence)
    const isProbe = others.length === 0 && getText(only) === 'quota' && evidence.request.body.max_tokens === 1
    return isProbe && isClaudeCode(evidence) ? 'side' : undefined
  },
}

/** Title requests set a JSON response format and contain the session's text in `<session>` tags. */
const sessionTitle: AgentRoleRule = {
  name: 'claude_code_session_title',
  find: (evidence) =>
    isClaudeCode(evidence) &&
    !hasTools(evidence) &&
    evidence.request.body.response_format !== undefined &&
    getLastUserText(evidence).startsWith('<session>\n')
      ? 'side'
      : undefined,
}

/** The web page tool sends the content of a page to a small model. */
const webPage: AgentRoleRule = {
  name: 'claude_code_web_page',
  find: (evidence) =>
    isClaudeCode(evidence) &&
    !hasTools(evidence) &&
    /^\s*Web page content:\n---\n/.test(getLastUserText(evidence))
      ? 'side'
      : undefined,
}

export const CLAUDE_CODE_RULES: readonly AgentRoleRule[] = [
  requestClass,
  agentId,
  compactionPrompt,
  quotaProbe,
  sessionTitle,
  webPage,
]
