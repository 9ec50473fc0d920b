/**
 * The annotation of messages that are rendered with another role than the client sent, because the template drops or
 * rejects that role (`template_messages.py`).
 */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { PromptRoles } from '../../tokens/templates/prompt-format.ts'

/** A message that is rendered with another role. The field names are those on the wire. */
interface RoleChange {
  /** The index of the message in the request, from 0. */
  message: number
  role: string
  sent: string
}

/** The maximum number of listed messages: more would not help a reader. */
const MAX_LISTED = 32

const isLeading = ({ value: { role } }: Message) => role === 'system' || role === 'developer'

/**
 * Returns the messages that are rendered with another role.
 * @param last the last message of the request
 * @param from the number of messages that an earlier turn has already reported
 */
export function findAdaptedRoles(
  { developer, later_system: laterSystem }: PromptRoles,
  last: Message | undefined,
  from: number,
): RoleChange[] {
  if (developer === 'developer' && laterSystem === 'system') return []
  const all = getMessagesBetween(undefined, last)
  const start = all.findIndex((message) => !isLeading(message))
  return all
    .flatMap((message, index) => {
      const { role } = message.value
      if (index < from || !isLeading(message)) return []
      const known = role === 'developer' ? developer : role
      const sent = known === 'system' && start !== -1 && index > start ? laterSystem : known
      return sent === role ? [] : [{ message: index, role, sent }]
    })
    .slice(0, MAX_LISTED)
}
