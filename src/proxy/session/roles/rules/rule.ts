/**
 * The interface of rules that find the role of a request by the conventions of known agents, and functions that they
 * share.
 */
import type { ChatMessage } from '../../../../protocol/canonical/messages.ts'
import type { CanonicalRequest } from '../../../../protocol/canonical/request.ts'
import type { DeclaredAgentRole } from '../agent-role.ts'

/** The HTTP headers of a request, by lower-case name; an array if a header occurs several times. */
export type RequestHeaders = Readonly<Record<string, string | string[] | undefined>>

/** The headers and the canonical body of a request, from which its role is found. */
export interface RequestEvidence {
  readonly headers: RequestHeaders
  readonly request: CanonicalRequest
}

/** A rule for one convention of one agent. */
export interface AgentRoleRule {
  /** The recorded name, `rule` in {@link AgentRoleMatch}. */
  readonly name: string
  /** Returns the role of a request; undefined: the rule does not apply to it. */
  find(evidence: RequestEvidence): DeclaredAgentRole | undefined
}

/** Returns the value of a header that occurs exactly once and is not empty. */
export function findHeader({ headers }: RequestEvidence, name: string): string | undefined {
  const value = headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** Returns whether the `user-agent` header matches. */
export function isAgent(evidence: RequestEvidence, userAgent: RegExp): boolean {
  return userAgent.test(findHeader(evidence, 'user-agent') ?? '')
}

export function getMessages({ request }: RequestEvidence): readonly ChatMessage[] {
  return request.kind === 'chat' ? request.body.messages : []
}

export function hasTools({ request }: RequestEvidence): boolean {
  return request.kind === 'chat' && (request.body.tools?.length ?? 0) > 0
}

/** Returns the text parts of a message, joined by line breaks. */
export function getText(message: ChatMessage | undefined): string {
  const content: unknown = message?.content
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .map((part: { text?: unknown } | null) => (typeof part?.text === 'string' ? part.text : ''))
    .join('\n')
}

/** Returns the text of the first message if it is a system or developer message. */
export function getSystemText(evidence: RequestEvidence): string {
  const [first] = getMessages(evidence)
  return first?.role === 'system' || first?.role === 'developer' ? getText(first) : ''
}

/** Returns the text of the last message with role `user`. */
export function getLastUserText(evidence: RequestEvidence): string {
  return getText(getMessages(evidence).findLast(({ role }) => role === 'user'))
}
