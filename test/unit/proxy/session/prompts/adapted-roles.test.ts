import t from 'tap'
import { MessageTree } from '../../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { findAdaptedRoles } from '../../../../../src/proxy/session/prompts/adapted-roles.ts'

const ROLES = ['system', 'developer', 'user', 'system', 'developer', 'user'] as const
const last = new MessageTree().addMessages(
  ROLES.map((role, index) => ({ role, content: `${index}` })) as ChatMessage[],
)

t.test('messages that are rendered in another role are listed, the new ones only', async (t) => {
  const both = { developer: 'system', later_system: 'user' } as const
  t.same(findAdaptedRoles(both, last, 0), [
    { message: 1, role: 'developer', sent: 'system' },
    { message: 3, role: 'system', sent: 'user' },
    { message: 4, role: 'developer', sent: 'user' },
  ])
  t.same(findAdaptedRoles(both, last, 4), [{ message: 4, role: 'developer', sent: 'user' }])
  t.same(findAdaptedRoles({ developer: 'developer', later_system: 'user' }, last, 0), [
    { message: 3, role: 'system', sent: 'user' },
  ])
  t.same(findAdaptedRoles({ developer: 'developer', later_system: 'system' }, last, 0), [])
  t.same(findAdaptedRoles(both, undefined, 0), [])
})
