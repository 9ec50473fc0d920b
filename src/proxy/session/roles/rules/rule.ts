/** What the rules by which agents tell a call's line have in common. */
import type { ChatMessage } from '../../../../protocol/canonical/messages.ts'
import type { CanonicalRequest } from '../../../../protocol/canonical/request.ts'
import type { DeclaredRole } from '../agent-role.ts'

export type Headers = Readonly<Record<string, string | string[] | undefined>>

/** A call as its agent sent it, in canonical form. */
export interface RequestEvidence {
  readonly headers: Headers
  readonly request: CanonicalRequest
}

/** One fact about one agent. */
export interface AgentRoleRule {
  readonly name: string
  /** @returns undefined: this rule has nothing to say of the call */
  find(call: RequestEvidence): DeclaredRole | undefined
}

/** The value of a header that came once. */
export function header({ headers }: RequestEvidence, name: string): string | undefined {
  const value = headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** Whether the agent names itself so. */
export function isAgent(call: RequestEvidence, userAgent: RegExp): boolean {
  return userAgent.test(header(call, 'user-agent') ?? '')
}

export function getMessages({ request }: RequestEvidence): readonly ChatMessage[] {
  return request.kind === 'chat' ? request.body.messages : []
}

export function hasTools({ request }: RequestEvidence): boolean {
  return request.kind === 'chat' && (request.body.tools?.length ?? 0) > 0
}

/** The text of a message; without its images and the like. */
export function getText(message: ChatMessage | undefined): string {
  const content: unknown = message?.content
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .map((part: { text?: unknown } | null) => (typeof part?.text === 'string' ? part.text : ''))
    .join('\n')
}

/** What stands first in the prompt, if the system says it. */
export function systemText(call: RequestEvidence): string {
  const [first] = getMessages(call)
  return first?.role === 'system' || first?.role === 'developer' ? getText(first) : ''
}

/** What the user, or whoever speaks for the user, said last. */
export function lastUserText(call: RequestEvidence): string {
  return getText(getMessages(call).findLast(({ role }) => role === 'user'))
}
