/** Requests of agents, as the role detection sees them. */
import type { ChatMessage, Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type { ChatBody } from '../../../../../src/protocol/canonical/request.ts'
import {
  AgentRoleFinder,
  type AgentRoleMatch,
} from '../../../../../src/proxy/session/roles/agent-role-finder.ts'
import { findDeclaredRole, type Headers } from '../../../../../src/proxy/session/roles/declared-role.ts'
import type { RoleInput } from '../../../../../src/proxy/session/roles/opening.ts'
import { lastOfTexts } from '../../../../helpers/messages.ts'

export interface Call {
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

/** The recorded turn of a request. */
export function record({ messages, tools = [], headers = {}, body, status = 'completed' }: Call): RoleInput {
  const functions = tools.map((name): Tool => ({ type: 'function', function: { name } }))
  const chat = { ...body, messages, ...(functions.length > 0 && { tools: functions }) }
  const line = findDeclaredRole({ headers, request: { kind: 'chat', body: chat } })
  return {
    status,
    lastMessage: lastOfTexts(messages.map((message) => JSON.stringify(message))),
    tools: functions.length > 0 ? JSON.stringify(functions) : null,
    annotations: JSON.stringify({ ...(line && { line }) }),
  }
}

export function find(calls: readonly Call[]): AgentRoleMatch[] {
  const finder = new AgentRoleFinder()
  return calls.map((call) => finder.add(record(call)))
}

export function getLines(calls: readonly Call[]): string[] {
  return find(calls).map(({ agentRole: line }) => line)
}
