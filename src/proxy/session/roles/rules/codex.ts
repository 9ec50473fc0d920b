/**
 * Rules for Codex (observed: 0.169.0; its source is in `codex-rs`). `thread-id` contains the id of the thread, and a
 * sub-agent's request declares the kind of sub-agent in `x-openai-subagent`. `x-codex-turn-metadata` is JSON; its
 * `request_kind` is the purpose of the request: `turn`, `compaction`, `memory` or `prewarm`.
 */
import { getSubagentRole } from '../agent-role.ts'
import { type AgentRoleRule, findHeader, type RequestEvidence } from './rule.ts'

const SUBAGENT = 'x-openai-subagent'

/**
 * The kinds of internal helpers that do not work on the task: they maintain Codex's memory or review its permissions.
 */
const AUXILIARY = new Set(['memory_consolidation', 'guardian', 'guardian_review'])

const memory: AgentRoleRule = {
  name: 'codex_memory',
  find: (evidence) =>
    findHeader(evidence, 'x-openai-memgen-request') === 'true' || readRequestKind(evidence) === 'memory'
      ? 'side'
      : undefined,
}

const subagent: AgentRoleRule = {
  name: 'codex_subagent',
  find(evidence) {
    const kind = findHeader(evidence, SUBAGENT)
    if (kind === undefined) return undefined
    if (AUXILIARY.has(kind)) return 'side'
    return kind === 'compact' ? 'compaction' : getSubagentRole(findHeader(evidence, 'thread-id'))
  },
}

const kindOfRequest: AgentRoleRule = {
  name: 'codex_request_kind',
  find(evidence) {
    const kind = readRequestKind(evidence)
    if (kind === 'compaction') return 'compaction'
    if (kind === 'prewarm') return 'side'
    return kind === 'turn' ? 'main' : undefined
  },
}

function readRequestKind(evidence: RequestEvidence): unknown {
  const text = findHeader(evidence, 'x-codex-turn-metadata')
  if (text === undefined) return undefined
  try {
    return (JSON.parse(text) as { request_kind?: unknown } | null)?.request_kind
  } catch {
    return undefined
  }
}

export const CODEX_RULES: readonly AgentRoleRule[] = [memory, subagent, kindOfRequest]
