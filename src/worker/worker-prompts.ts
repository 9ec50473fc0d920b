/** What a worker knows of the prompts that its engines saw. Whatever is forgotten is sent, read or written anew. */

import { RecentlyUsed } from '../base/recently-used.ts'
import type { GenerationRequest } from '../protocol/canonical/request.ts'
import type { PromptIds } from '../protocol/token-ids/prompt-ids.ts'
import { PromptLists } from '../protocol/token-ids/prompt-lists.ts'
import { MIN_REPORTED_IDS } from '../protocol/worker/reported-prompts.ts'

/** Some 300 prompts of 100,000 tokens, each counted as if it shared nothing. */
const MAX_SHARED_BYTES = 128 * 1024 * 1024

/** Some 600 sessions with prompts of 100,000 tokens. */
const MAX_LIST_BYTES = 256 * 1024 * 1024

export class WorkerPrompts {
  /** By the call, as the proxy names it. */
  readonly #reported = new RecentlyUsed<string, PromptIds>(
    MAX_SHARED_BYTES,
    ({ length }) => length * Int32Array.BYTES_PER_ELEMENT,
  )
  /** By session, of those that have any. */
  readonly #lists = new RecentlyUsed<string, PromptLists>(
    MAX_LIST_BYTES,
    ({ bytes, idBytes }) => bytes + idBytes,
  )

  /** What a call of the session reads and writes its prompt with. */
  listsOf(sessionId: string): PromptLists {
    return this.#lists.get(sessionId) ?? new PromptLists()
  }

  of(requestId: string): PromptIds | undefined {
    return this.#reported.get(requestId)
  }

  /** A prompt is sent to the proxy, which may name it as the base of another. */
  tell({ requestId, sessionId, promptLists: lists }: GenerationRequest, ids: PromptIds): void {
    if (ids.length >= MIN_REPORTED_IDS) this.#reported.set(requestId, ids)
    // Short lists are not kept. One that has grown is counted anew.
    if (lists !== undefined && lists.bytes > 0) this.#lists.set(sessionId, lists)
  }
}
