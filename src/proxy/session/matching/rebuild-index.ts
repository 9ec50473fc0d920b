import type { Tool, ToolCall } from '../../../protocol/canonical/messages.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/number-texts.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { ToolCallRewritePolicy, TurnRecord } from '../../store/port/turn-store.ts'
import { type ConversationKeys, readConversation } from './conversation.ts'
import { type CompletionMessage, type IndexTurn, PrefixIndex } from './prefix-index.ts'
import { getRecordedParent } from './recorded-parent.ts'

/** The fields of a recorded turn that matching reads. */
export type PrefixIndexFields = Pick<
  TurnRecord,
  'turnId' | 'status' | 'annotations' | 'lastMessage' | 'tools' | 'completionText' | 'reasoning' | 'toolCalls'
>

/**
 * Rebuilds the index of a recorded session, for instance after a restart.
 * @param records the session's turns in index order; turns that are not completed or have no messages are skipped
 * @param getTurn returns the data that the index stores for a turn; undefined: the turn cannot be continued
 * @param getConversation computes the keys of a recorded request, equal to those that it had in flight
 * @param editedCalls the session's tool-call rewrite policy
 */
export async function rebuildIndex<Recorded extends PrefixIndexFields, Turn>(
  records: AsyncIterable<Recorded> | Iterable<Recorded>,
  getTurn: (record: Recorded) => Turn | undefined,
  getConversation: (
    record: Recorded,
  ) => ConversationKeys | Promise<ConversationKeys> = createConversationReader(),
  editedCalls?: ToolCallRewritePolicy,
): Promise<PrefixIndex<Turn>> {
  const index = new PrefixIndex<Turn>(editedCalls)
  const known = new Map<string, IndexTurn<Turn>>()
  for await (const record of records) {
    if (record.status !== 'completed' || record.lastMessage === undefined) continue
    const turn = getTurn(record)
    if (turn === undefined) continue
    const conversation = await getConversation(record)
    const parentId = getRecordedParent(record)
    const parent = typeof parentId === 'string' ? known.get(parentId) : undefined
    const isParentRecorded = parentId === null || parent !== undefined
    const match = isParentRecorded ? index.createMatch(parent, conversation) : index.match(conversation)
    known.set(record.turnId, index.add(match, toSampledMessage(record), turn))
  }
  return index
}

/**
 * Creates a function that computes the keys of recorded requests. It parses equal tools of consecutive requests once.
 */
export function createConversationReader(
  memo?: PartMemo,
): (record: Pick<PrefixIndexFields, 'lastMessage' | 'tools'>) => ConversationKeys {
  let latest: { json: string; tools: Tool[] } | undefined
  return ({ lastMessage, tools: json }) => {
    if (json !== null && latest?.json !== json) latest = { json, tools: parseKeepingNumbers(json) as Tool[] }
    const tools = json === null ? null : latest!.tools
    return readConversation(lastMessage, tools, memo)
  }
}

/** Returns the completion of a recorded turn as matching reads it. */
export function toSampledMessage(
  turn: Pick<PrefixIndexFields, 'completionText' | 'reasoning' | 'toolCalls'>,
): CompletionMessage {
  const { completionText: content, reasoning, toolCalls } = turn
  return { content, reasoning, toolCalls: JSON.parse(toolCalls) as ToolCall[] }
}
