import type { Tool, ToolCall } from '../../../protocol/canonical/messages.ts'
import type { Repeats } from '../../../protocol/canonical/request-reader.ts'
import { parseAsWritten } from '../../../protocol/canonical/written-numbers.ts'
import type { EditedCalls, TurnRecord } from '../../store/port/turn-store.ts'
import { type KeyedConversation, readConversation } from './conversation.ts'
import { type MatchableTurn, type MatchedCall, MatchIndex, type SampledMessage } from './match-index.ts'

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
    const call = index.match(await conversationOf(record))
    const added = index.add({ ...call, ...parentOnRecord(record, known) }, completionOf(record), turn)
    known.set(record.turnId, added)
  }
  return index
}

/**
 * The parent that the call had when it was live. Matched anew, it could get another one: a turn that was still under way
 * then, or one whose equal answer was continued since.
 * @returns undefined where the record does not tell it
 */
function parentOnRecord<Turn>(
  { annotations }: MatchableRecord,
  known: ReadonlyMap<string, MatchableTurn<Turn>>,
): Pick<MatchedCall<Turn>, 'parent' | 'sharedMessages'> | undefined {
  const { from, reason }: Partial<PromptOnRecord> = JSON.parse(annotations).prompt ?? {}
  if (reason === 'first' || reason === 'branched') return { parent: undefined, sharedMessages: 0 }
  const parent = from === undefined ? undefined : known.get(from)
  return parent && { parent, sharedMessages: parent.depth }
}

/** How token mode came by a prompt. */
interface PromptOnRecord {
  reason: string
  from?: string
}

/** Reads the calls of turns on record, as they were when they were live. */
export function recordedConversations(
  repeats?: Repeats,
): (record: Pick<MatchableRecord, 'lastMessage' | 'tools'>) => KeyedConversation {
  let latest: { json: string; tools: Tool[] } | undefined
  return ({ lastMessage, tools: json }) => {
    if (json !== null && latest?.json !== json) latest = { json, tools: parseAsWritten(json) as Tool[] }
    const tools = json === null ? null : latest!.tools
    return readConversation(lastMessage, tools, repeats)
  }
}

/** What a turn on record was answered with. */
export function completionOf({
  completionText,
  reasoning,
  toolCalls,
}: Pick<MatchableRecord, 'completionText' | 'reasoning' | 'toolCalls'>): SampledMessage {
  return { content: completionText, reasoning, toolCalls: JSON.parse(toolCalls) as ToolCall[] }
}
