/**
 * The cache of a session between its requests, by which the cost of a request depends only on its new part: the raw
 * requests, the messages as a tree, prompts in the form of engines, and the turns that requests continue. Evicting any
 * of it only makes the next request slower; the cache ends with its session.
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

/** The approximate size of an idempotency key and its entry. */
const KEY_BYTES = 128

/** The cache of one session. */
export class SessionMemory {
  readonly requests = new RequestReader()
  readonly messages = new MessageTree()
  readonly prompts = new PromptLists()
  readonly callIds = new ToolCallIds()
  /** The rewrite policy for tool calls that the agent sends back changed. */
  editedCalls: ToolCallRewritePolicy = 'auto'
  /** The turns that requests continue; undefined: not known yet. */
  turns: SessionTurns | undefined
  /** In chat mode: whether each turn of the session that can be continued is in {@link turns}. */
  isComplete = false
  /** The idempotency keys of requests; undefined: unknown, because there were requests before this cache. */
  idempotencyKeys: Set<string> | undefined
  /** The prompt of the latest request for several completions. */
  choicesPrompt: ChoicesPrompt | undefined
  /** Pending while the turns are read from the store, for all requests that wait for them. */
  readingTurns: Promise<SessionTurns> | undefined

  get bytes(): number {
    const { requests, messages, prompts, turns, idempotencyKeys: keys } = this
    // Counted once: the values are shared as long as all requests have become messages, as are the ids of recorded
    // turns.
    const values = Math.max(requests.valueBytes, messages.valueBytes)
    const ids = Math.max(prompts.idBytes, turns?.bytes ?? 0)
    const names = this.callIds.bytes + (keys?.size ?? 0) * KEY_BYTES
    return OWN_BYTES + requests.bytes + messages.bytes + prompts.bytes + values + ids + names
  }
}
