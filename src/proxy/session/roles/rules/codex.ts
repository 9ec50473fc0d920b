/**
 * Codex (seen: 0.169.0; its source is in `codex-rs`). Every thread has its id in `thread-id`, and a sub-agent's call
 * says what sort of sub-agent it is in `x-openai-subagent`. `x-codex-turn-metadata` is JSON whose `request_kind` says
 * what the call is for: `turn`, `compaction`, `memory` or `prewarm`.
 */
import { getSubagentRole } from '../agent-role.ts'
import { type AgentRoleRule, header, type RequestEvidence } from './rule.ts'

const SUBAGENT = 'x-openai-subagent'

/** Helpers of Codex itself, which say nothing on the task: they keep its memory, or judge what it may do. */
const AUXILIARY = new Set(['memory_consolidation', 'guardian', 'guardian_review'])

const memory: AgentRoleRule = {
  name: 'codex_memory',
  find: (call) =>
    header(call, 'x-openai-memgen-request') === 'true' || requestKind(call) === 'memory' ? 'side' : undefined,
}

const subagent: AgentRoleRule = {
  name: 'codex_subagent',
  find(call) {
    const kind = header(call, SUBAGENT)
    if (kind === undefined) return undefined
    if (AUXILIARY.has(kind)) return 'side'
    return kind === 'compact' ? 'compaction' : getSubagentRole(header(call, 'thread-id'))
  },
}

const kindOfRequest: AgentRoleRule = {
  name: 'codex_request_kind',
  find(call) {
    const kind = requestKind(call)
    if (kind === 'compaction') return 'compaction'
    if (kind === 'prewarm') return 'side'
    return kind === 'turn' ? 'main' : undefined
  },
}

function requestKind(call: RequestEvidence): unknown {
  const text = header(call, 'x-codex-turn-metadata')
  if (text === undefined) return undefined
  try {
    return (JSON.parse(text) as { request_kind?: unknown } | null)?.request_kind
  } catch {
    return undefined
  }
}

export const CODEX_RULES: readonly AgentRoleRule[] = [memory, subagent, kindOfRequest]
