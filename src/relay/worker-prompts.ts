/** What a worker knows of the prompts that its engines saw. Whatever is forgotten is told, read or written anew. */
import type { PromptIds } from '../canonical/prompt-ids.ts'
import { PromptLists } from '../canonical/prompt-lists.ts'
import type { GenerationRequest } from '../canonical/request.ts'
import { RecentlyUsed } from '../recently-used.ts'

/** Some 300 prompts of 100,000 tokens, each counted as if it shared nothing. */
const MAX_TOLD_BYTES = 128 * 1024 * 1024

/** Some 300 sessions with prompts of 100,000 tokens. */
const MAX_LIST_BYTES = 256 * 1024 * 1024

/** Of a session whose lists are short. */
const SESSION_BYTES = 500

export class WorkerPrompts {
  /** By the call, as the proxy names it. */
  readonly #told = new RecentlyUsed<string, PromptIds>(
    MAX_TOLD_BYTES,
    ({ length }) => length * Int32Array.BYTES_PER_ELEMENT,
  )
  /** By session. */
  readonly #lists = new RecentlyUsed<string, PromptLists>(
    MAX_LIST_BYTES,
    ({ bytes }) => SESSION_BYTES + bytes,
  )

  listsOf(sessionId: string): PromptLists {
    const lists = this.#lists.get(sessionId) ?? new PromptLists()
    this.#lists.set(sessionId, lists)
    return lists
  }

  told(requestId: string): PromptIds | undefined {
    return this.#told.get(requestId)
  }

  /** A prompt is told to the proxy, which may name it as the base of another. */
  tell({ requestId, sessionId }: GenerationRequest, ids: PromptIds): void {
    this.#told.set(requestId, ids)
    // Counted anew: the list of this prompt has been added.
    this.#lists.set(sessionId, this.listsOf(sessionId))
  }
}
