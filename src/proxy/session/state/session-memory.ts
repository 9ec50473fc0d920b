/**
 * What the proxy remembers of sessions between their calls, so that each call costs what is new in it: the requests as they
 * came, the messages as a tree, prompts as engines write them, and the turns that calls go on from. Whatever is forgotten
 * costs time with the next call, and nothing else; what a session knew goes with its end.
 */
import { MessageTree } from '../../../protocol/canonical/conversation.ts'
import { RequestReader } from '../../../protocol/canonical/request-reader.ts'
import { PromptLists } from '../../../protocol/token-ids/prompt-lists.ts'
import type { EditedCalls } from '../../store/port/turn-store.ts'
import type { SessionTurns } from '../matching/session-turns.ts'
import { ToolCallIds } from '../matching/tool-call-ids.ts'
import type { ChoicesPrompt } from './planned-prompt.ts'

/** Of what remembers next to nothing. As measured. */
const OWN_BYTES = 5_000

/** A name of a call and its place, about. */
const KEY_BYTES = 128

/** What is remembered of one session. */
export class SessionMemory {
  readonly requests = new RequestReader()
  readonly messages = new MessageTree()
  readonly prompts = new PromptLists()
  readonly callIds = new ToolCallIds()
  /** What becomes of calls that the agent sends back otherwise than they were sampled. */
  editedCalls: EditedCalls = 'auto'
  /** The turns that calls go on from; undefined: not known yet. */
  turns: SessionTurns | undefined
  /** In chat mode: each turn of the session that can be continued is among {@link turns}. */
  isWhole = false
  /** Names that clients gave their calls; undefined: not known, for there were calls before this memory. */
  idempotencyKeys: Set<string> | undefined
  /** Of the latest call that asked for several answers. */
  choicesPrompt: ChoicesPrompt | undefined
  /** While they are read from the record: for all calls that wait for them. */
  readingTurns: Promise<SessionTurns> | undefined

  get bytes(): number {
    const { requests, messages, prompts, turns, idempotencyKeys: keys } = this
    // The same values, as long as all that was read has become messages; and the same ids, of calls that were recorded.
    const values = Math.max(requests.valueBytes, messages.valueBytes)
    const ids = Math.max(prompts.idBytes, turns?.bytes ?? 0)
    const names = this.callIds.bytes + (keys?.size ?? 0) * KEY_BYTES
    return OWN_BYTES + requests.bytes + messages.bytes + prompts.bytes + values + ids + names
  }
}
