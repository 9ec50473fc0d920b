/**
 * The cache of a session, by which the cost of a request depends only on its new part: raw requests, messages as a
 * tree, prompts in the form of engines, and the turns that requests continue. Eviction only makes the next request
 * slower. The cache is discarded when its session ends.
 */
import { MessageTree } from '../../../protocol/canonical/conversation.ts'
import { RequestReader } from '../../../protocol/canonical/request-reader.ts'
import { PromptLists } from '../../../protocol/token-ids/prompt-lists.ts'
import type { ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import type { SessionTurns } from '../matching/session-turns.ts'
import { ToolCallIds } from '../matching/tool-call-ids.ts'
import type { ChoicesPrompt } from './prompt-plan.ts'

/** The measured size of an almost empty cache. */
const OWN_BYTES = 5_000

/** The estimated size of an idempotency key and its entry. */
const KEY_BYTES = 128

/** The cache of one session. */
export class SessionMemory {
  readonly requests = new RequestReader()
  readonly messages = new MessageTree()
  readonly prompts = new PromptLists()
  readonly callIds = new ToolCallIds()
  /** The tool-call rewrite policy of the session. */
  editedCalls: ToolCallRewritePolicy = 'auto'
  /** The turns that requests can continue; undefined: they have not been read. */
  turns: SessionTurns | undefined
  /** In chat mode: whether {@link turns} has all turns of the session that can be continued. */
  isComplete = false
  /**
   * The idempotency keys of all earlier requests; undefined: unknown, because the session had requests before this
   * cache was created.
   */
  idempotencyKeys: Set<string> | undefined
  /** The prompt of the latest request with several choices. */
  choicesPrompt: ChoicesPrompt | undefined
  /** The read of {@link turns} from the store, while it is pending; all requests that need them share it. */
  readingTurns: Promise<SessionTurns> | undefined
  /** In chat mode: the read of {@link callIds} from the store, while it is pending; all requests share it. */
  readingCallIds: Promise<void> | undefined

  get bytes(): number {
    const { requests, messages, prompts, turns, idempotencyKeys: keys } = this
    // Shared data is counted once: `requests` and `messages` share values, except those of requests that have not become
    // messages; `prompts` and `turns` share the ids of recorded turns.
    const values = Math.max(requests.valueBytes, messages.valueBytes)
    const ids = Math.max(prompts.idBytes, turns?.bytes ?? 0)
    const names = this.callIds.bytes + (keys?.size ?? 0) * KEY_BYTES
    return OWN_BYTES + requests.bytes + messages.bytes + prompts.bytes + values + ids + names
  }
}
