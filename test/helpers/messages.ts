import { getTextsUpTo, type Message, MessageTree } from '../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, Tool } from '../../src/protocol/canonical/messages.ts'
import { type ConversationKeys, readConversation } from '../../src/proxy/session/matching/conversation.ts'
import type { TurnRecord } from '../../src/proxy/store/port/turn-store.ts'

const tree = new MessageTree()

/** Adds messages as JSON texts to a tree. @returns the last one; lists with a common prefix share its messages */
export function addMessageTexts(texts: readonly string[]): Message | undefined {
  return tree.addMessageTexts(texts)
}

/** A turn as a store returns it, with its messages as texts. */
export type TurnWithTexts = Omit<TurnRecord, 'lastMessage'> & { readonly requestMessages: readonly string[] }

export function withTexts({ lastMessage, ...turn }: TurnRecord): TurnWithTexts {
  return { ...turn, requestMessages: getTextsUpTo(lastMessage) }
}

/**
 * Builds a request's conversation for matching.
 * @param tree of the session; absent: no earlier requests are known
 */
export function createConversation(
  messages: readonly object[],
  tools: readonly object[] | null | undefined = null,
  tree = new MessageTree(),
): ConversationKeys {
  return readConversation(
    tree.addMessages(messages as readonly ChatMessage[]),
    tools as readonly Tool[] | null,
  )
}
