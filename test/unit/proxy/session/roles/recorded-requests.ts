/** Requests of agents, and their agent roles. */
import type { ChatMessage, Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type { ChatBody } from '../../../../../src/protocol/canonical/request.ts'
import {
  AgentRoleFinder,
  type AgentRoleMatch,
} from '../../../../../src/proxy/session/roles/agent-role-finder.ts'
import { findDeclaredRole, type Headers } from '../../../../../src/proxy/session/roles/declared-role.ts'
import type { RoleInput } from '../../../../../src/proxy/session/roles/opening.ts'
import { addMessageTexts } from '../../../../helpers/messages.ts'

export interface RecordedRequest {
  messages: ChatMessage[]
  tools?: readonly string[]
  headers?: Headers
  /** Other fields of the body. */
  body?: Partial<ChatBody>
  status?: RoleInput['status']
}

export const system = (content: string): ChatMessage => ({ role: 'system', content })
export const user = (content: string): ChatMessage => ({ role: 'user', content })
export const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })

/** Returns the recorded turn of a request, as the role detection reads it. */
export function createRoleInput({
  messages,
  tools = [],
  headers = {},
  body,
  status = 'completed',
}: RecordedRequest): RoleInput {
  const functions = tools.map((name): Tool => ({ type: 'function', function: { name } }))
  const chat = { ...body, messages, ...(functions.length > 0 && { tools: functions }) }
  const declared = findDeclaredRole({ headers, request: { kind: 'chat', body: chat } })
  return {
    status,
    lastMessage: addMessageTexts(messages.map((message) => JSON.stringify(message))),
    tools: functions.length > 0 ? JSON.stringify(functions) : null,
    annotations: JSON.stringify({ ...(declared && { line: declared }) }),
  }
}

export function findRoles(requests: readonly RecordedRequest[]): AgentRoleMatch[] {
  const finder = new AgentRoleFinder()
  return requests.map((request) => finder.add(createRoleInput(request)))
}

export function getAgentRoles(requests: readonly RecordedRequest[]): string[] {
  return findRoles(requests).map(({ agentRole }) => agentRole)
}
