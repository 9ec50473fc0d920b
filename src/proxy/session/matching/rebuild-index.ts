import type { Tool, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/written-numbers.ts'
import type { EditedCalls, TurnRecord } from '../../store/port/turn-store.ts'
import { type KeyedConversation, readConversation } from './conversation.ts'
import { type MatchableTurn, MatchIndex, type SampledMessage } from './match-index.ts'
import { parentOnRecord } from './parent-on-record.ts'

/** What of a turn on record matching reads. */
export type MatchableRecord = Pick<
  TurnRecord,
  'turnId' | 'status' | 'annotations' | 'lastMessage' | 'tools' | 'completionText' | 'reasoning' | 'toolCalls'
>

/**
 * The index of a session that was recorded before, for instance by a process that is gone.
 * @param records the session's turns in call order; those that are not completed, or are no chat, are passed over
 * @param turnOf what the index is to keep of a turn; undefined: the turn is not to be continued
 * @param conversationOf how calls are read for matching, when they are live as when they are on record
 * @param editedCalls as it holds for the session
 */
export async function rebuildIndex<Recorded extends MatchableRecord, Turn>(
  records: AsyncIterable<Recorded> | Iterable<Recorded>,
  turnOf: (record: Recorded) => Turn | undefined,
  conversationOf: (
    record: Recorded,
  ) => KeyedConversation | Promise<KeyedConversation> = recordedConversations(),
  editedCalls?: EditedCalls,
): Promise<MatchIndex<Turn>> {
  const index = new MatchIndex<Turn>(editedCalls)
  const known = new Map<string, MatchableTurn<Turn>>()
  for await (const record of records) {
    if (record.status !== 'completed' || record.lastMessage === undefined) continue
    const turn = turnOf(record)
    if (turn === undefined) continue
    const conversation = await conversationOf(record)
    const parentId = parentOnRecord(record)
    const parent = typeof parentId === 'string' ? known.get(parentId) : undefined
    const isOnRecord = parentId === null || parent !== undefined
    const call = isOnRecord ? index.continuing(parent, conversation) : index.match(conversation)
    known.set(record.turnId, index.add(call, completionOf(record), turn))
  }
  return index
}

/** Reads the calls of turns on record, as they were when they were live. */
export function recordedConversations(
  repeats?: PartMemo,
): (record: Pick<MatchableRecord, 'lastMessage' | 'tools'>) => KeyedConversation {
  let latest: { json: string; tools: Tool[] } | undefined
  return ({ lastMessage, tools: json }) => {
    if (json !== null && latest?.json !== json) latest = { json, tools: parseKeepingNumbers(json) as Tool[] }
    const tools = json === null ? null : latest!.tools
    return readConversation(lastMessage, tools, repeats)
  }
}

/** What a turn on record was answered with. */
export function completionOf(
  turn: Pick<MatchableRecord, 'completionText' | 'reasoning' | 'toolCalls'>,
): SampledMessage {
  const { completionText: content, reasoning, toolCalls } = turn
  return { content, reasoning, toolCalls: JSON.parse(toolCalls) as ToolCall[] }
}
