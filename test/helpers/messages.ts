import { type Message, MessageTree } from '../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, Tool } from '../../src/protocol/canonical/messages.ts'
import { type KeyedConversation, readConversation } from '../../src/proxy/session/matching/conversation.ts'

const tree = new MessageTree()

/** The last of messages that are JSON texts; lists that begin alike share what they begin with. */
export function lastOfTexts(texts: readonly string[]): Message | undefined {
  return tree.lastOfTexts(texts)
}

/** A call as matching reads it. @param tree of the session; absent: nothing is known of earlier calls */
export function conversationOf(
  messages: readonly object[],
  tools: readonly object[] | null | undefined = null,
  tree = new MessageTree(),
): KeyedConversation {
  return readConversation(tree.lastOf(messages as readonly ChatMessage[]), tools as readonly Tool[] | null)
}
