/**
 * Lines: what the calls of one rollout were for. Agents of today make several kinds of calls under one base URL, and
 * a trainer wants to know which is which.
 */
import { ProxyError } from '../../../base/errors.ts'

/**
 * - `main`: the work on the task itself.
 * - `subagent:…`: the work of one helper that the main line started; each helper is a line of its own.
 * - `compaction`: the call in which the main line sums its conversation up, to go on with the summary alone.
 * - `side`: a call beside the work, such as a title for the session or a probe of a quota.
 */
export type AgentRole = 'main' | 'compaction' | 'side' | `subagent:${string}`

/** What somebody says of a call. `subagent`: of some helper, and nobody says of which one. */
export type DeclaredRole = AgentRole | 'subagent'

const WORDS: readonly string[] = ['main', 'compaction', 'side', 'subagent'] satisfies DeclaredRole[]
const SUBAGENT = /^subagent:[\x21-\x7e]{1,200}$/

export function isDeclaredRole(value: unknown): value is DeclaredRole {
  return typeof value === 'string' && (WORDS.includes(value) || SUBAGENT.test(value))
}

/** @param id as the agent gives it; one that cannot be shown is as good as none */
export function getSubagentRole(id: unknown): DeclaredRole {
  const line = `subagent:${id}`
  return typeof id === 'string' && isDeclaredRole(line) ? line : 'subagent'
}

/** Whether a turn of this line is part of the main line's work: what it says of itself in a summary is, too. */
export function isMainWork(line: AgentRole): boolean {
  return line === 'main' || line === 'compaction'
}

/** The header by which an agent, or whoever starts it, says the line of a call. It wins over everything else. */
export const AGENT_ROLE_HEADER = 'x-llm-proxy-line'

/** @throws ProxyError `invalid_request` for a line that there is not */
export function parseAgentRole(text: string): DeclaredRole {
  if (isDeclaredRole(text)) return text
  throw new ProxyError(
    'invalid_request',
    `'${AGENT_ROLE_HEADER}' must be main, compaction, side, subagent or subagent:<name>, where a name has at most 200 ` +
      'visible characters of ASCII',
    { param: AGENT_ROLE_HEADER },
  )
}
