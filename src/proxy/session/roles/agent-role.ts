/**
 * Agent roles: the purpose of each request in a session. Agents send several kinds of requests to one base URL, and a
 * trainer must distinguish them.
 */
import { ProxyError } from '../../../base/errors.ts'

/**
 * The purpose of a request:
 *
 * - `main`: the work on the task itself.
 * - `subagent:…`: the work of one helper that the main agent started; each helper has a separate role.
 * - `compaction`: the request in which the main agent summarizes its conversation, to continue with the summary alone.
 * - `side`: a request besides the work, such as one for a session title or a quota check.
 */
export type AgentRole = 'main' | 'compaction' | 'side' | `subagent:${string}`

/** A role that a client declares. `subagent`: a sub-agent that is not identified. */
export type DeclaredAgentRole = AgentRole | 'subagent'

const WORDS: readonly string[] = ['main', 'compaction', 'side', 'subagent'] satisfies DeclaredAgentRole[]
const SUBAGENT = /^subagent:[\x21-\x7e]{1,200}$/

/** Returns whether a value is a valid declared role. */
export function isDeclaredRole(value: unknown): value is DeclaredAgentRole {
  return typeof value === 'string' && (WORDS.includes(value) || SUBAGENT.test(value))
}

/**
 * Returns the role of a sub-agent.
 * @param id the id that the agent sends; one with other than visible ASCII characters or an invalid length counts as
 *   absent
 */
export function getSubagentRole(id: unknown): DeclaredAgentRole {
  const line = `subagent:${id}`
  return typeof id === 'string' && isDeclaredRole(line) ? line : 'subagent'
}

/** Returns whether a role is part of the main agent's work, which includes its compactions. */
export function isMainWork(line: AgentRole): boolean {
  return line === 'main' || line === 'compaction'
}

/**
 * The header by which an agent or its launcher declares a request's role, and the header's former name, which is
 * accepted until 0.3.0. It overrides all other rules.
 */
export const AGENT_ROLE_HEADERS = ['x-llm-proxy-agent-role', 'x-llm-proxy-line'] as const

/**
 * Parses the value of the header.
 * @param name the name of the header, for the error
 * @throws ProxyError `invalid_request` for an unknown role
 */
export function parseAgentRole(text: string, name: string): DeclaredAgentRole {
  if (isDeclaredRole(text)) return text
  throw new ProxyError(
    'invalid_request',
    `'${name}' must be main, compaction, side, subagent or subagent:<name>, where a name has at most 200 ` +
      'visible characters of ASCII',
    { param: name },
  )
}
