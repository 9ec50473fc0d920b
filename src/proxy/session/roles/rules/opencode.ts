/**
 * Rules for opencode. A sub-agent has its own opencode session, and its requests name the parent session in a header.
 * Title, summary and compaction requests have specific system prompts and run in the session that they concern.
 */
import { getSubagentRole } from '../agent-role.ts'
import { type AgentRoleRule, findHeader, getSystemText, isAgent, type RequestEvidence } from './rule.ts'

const SESSION_IDS = ['x-session-id', 'x-session-affinity', 'x-opencode-session']

const startsWith = (evidence: RequestEvidence, ...beginnings: string[]) =>
  isAgent(evidence, /^opencode\//) &&
  beginnings.some((beginning) => getSystemText(evidence).startsWith(beginning))

const parentSession: AgentRoleRule = {
  name: 'opencode_parent_session',
  find(evidence) {
    if (findHeader(evidence, 'x-parent-session-id') === undefined) return undefined
    return getSubagentRole(
      SESSION_IDS.map((name) => findHeader(evidence, name)).find((id) => id !== undefined),
    )
  },
}

const title: AgentRoleRule = {
  name: 'opencode_title',
  find: (evidence) =>
    startsWith(evidence, 'You are a title generator. You output ONLY a thread title.') ? 'side' : undefined,
}

const summary: AgentRoleRule = {
  name: 'opencode_summary',
  find: (evidence) =>
    startsWith(evidence, 'Summarize what was done in this conversation.') ? 'side' : undefined,
}

const compaction: AgentRoleRule = {
  name: 'opencode_compaction',
  find: (evidence) =>
    startsWith(
      evidence,
      'You are an anchored context summarization assistant for coding sessions.',
      'You are a helpful AI assistant tasked with summarizing conversations.',
    )
      ? 'compaction'
      : undefined,
}

/**
 * The rules in order of precedence. `title` and `summary` precede `parentSession`, since the session of a sub-agent may
 * send such requests. `compaction` follows it, since the compaction of a sub-agent belongs to the sub-agent's role.
 */
export const OPENCODE_RULES: readonly AgentRoleRule[] = [title, summary, parentSession, compaction]
