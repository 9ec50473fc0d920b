/**
 * What the proxy remembers of sessions between their calls, so that each call costs what is new in it: the requests as they
 * came, the messages as a tree, prompts as engines write them, and the turns that calls go on from. All sessions share one budget of bytes. Whatever is
 * forgotten costs time with the next call, and nothing else; what a session knew goes with its end.
 */
import { MessageTree } from '../../../protocol/canonical/conversation.ts'
import { RequestReader } from '../../../protocol/canonical/request-reader.ts'
import { PromptLists } from '../../../protocol/token-ids/prompt-lists.ts'
import type { EditedCalls } from '../../store/port/turn-store.ts'
import { CallIds } from '../matching/call-ids.ts'
import type { SessionTurns } from '../matching/session-turns.ts'
import type { ChoicesPrompt } from './planned-prompt.ts'

/** Of a session of which next to nothing is remembered. As measured. */
const SESSION_BYTES = 5_000

/** A name of a call and its place, about. */
const KEY_BYTES = 128

/** What is remembered of one session. */
export class SessionMemory {
  readonly requests = new RequestReader()
  readonly messages = new MessageTree()
  readonly prompts = new PromptLists()
  readonly callIds = new CallIds()
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
    return requests.bytes + messages.bytes + prompts.bytes + values + ids + names
  }

  /** Lets go of what only a call that is under way needs. */
  rest(): void {
    this.messages.letGoOfJson()
  }
}

/** In the hands of a call: what the call adds is not lost before it lets go. */
export interface HeldMemory extends Disposable {
  readonly memory: SessionMemory
}

interface Entry {
  readonly memory: SessionMemory
  /** Calls that hold it. */
  holders: number
  /** As counted in the sum over all sessions. */
  bytes: number
}

export class SessionMemories {
  readonly #maxBytes: number
  /** In order of use. */
  readonly #entries = new Map<string, Entry>()
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Of all sessions. */
  get bytes(): number {
    return this.#bytes
  }

  /** How many sessions are remembered. */
  get size(): number {
    return this.#entries.size
  }

  hold(sessionId: string): HeldMemory {
    const entry = this.#entries.get(sessionId) ?? { memory: new SessionMemory(), holders: 0, bytes: 0 }
    this.#entries.delete(sessionId)
    this.#entries.set(sessionId, entry)
    entry.holders += 1
    let held = true
    return {
      memory: entry.memory,
      [Symbol.dispose]: () => {
        if (held) this.#release(sessionId, entry)
        held = false
      },
    }
  }

  /** Calls that hold the session's memory keep it for themselves. */
  forget(sessionId: string): void {
    const entry = this.#entries.get(sessionId)
    if (entry === undefined) return
    this.#entries.delete(sessionId)
    this.#bytes -= entry.bytes
  }

  #release(sessionId: string, entry: Entry): void {
    entry.holders -= 1
    if (entry.holders === 0) entry.memory.rest()
    // What was forgotten meanwhile is counted no more.
    if (this.#entries.get(sessionId) !== entry) return
    const bytes = SESSION_BYTES + entry.memory.bytes
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    for (const [id, { holders }] of this.#entries) {
      if (this.#bytes <= this.#maxBytes) return
      if (holders === 0) this.forget(id)
    }
  }
}
