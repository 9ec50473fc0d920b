/** What the main thread remembers of each session's last request, so that the next one need not be sent whole. */
import { RecentlyUsed } from '../../recently-used.ts'
import type { OpenTurn } from '../turn-store.ts'
import { LINK_LENGTH, type RecordedRequest, type SentTexts, type SentTurn } from './sent-turn.ts'

/** For all sessions together. The texts are the same strings that matching keeps, as a rule. */
const MAX_CHARS = 16 * 1024 * 1024

interface LastRequest {
  readonly messages: readonly string[]
  readonly prompt: readonly string[]
  readonly tools: string | null
  /** Unknown until the writer has it on record. */
  recorded?: RecordedRequest
}

export class RepeatedRequests {
  readonly #last = new RecentlyUsed<string, LastRequest>(MAX_CHARS, charsOf)

  /**
   * The turn as it is to be sent, and what is to be told when it is on record. Until then the session's next request
   * is sent whole.
   */
  pack(turn: OpenTurn): { sent: SentTurn; recorded(request: RecordedRequest): void } {
    const { requestMessages: messages, promptPieces: prompt, tools, ...rest } = turn
    const last = this.#last.get(turn.sessionId)
    const request: LastRequest = { messages, prompt, tools }
    this.#last.set(turn.sessionId, request)
    return {
      sent: {
        ...rest,
        messages: newTexts(messages, last?.messages, last?.recorded?.messagesChain),
        prompt: newPieces(prompt, last?.prompt, last?.recorded?.promptChain),
        tools: newTools(tools, last),
      },
      recorded(known) {
        request.recorded = known
      },
    }
  }

  /** To be called before the writer is told to remove the session's turns. */
  forget(sessionId: string): void {
    this.#last.delete(sessionId)
  }

  forgetAll(): void {
    this.#last.clear()
  }
}

/** @param last texts that are a node on record, once their chain is known */
function newTexts(texts: readonly string[], last: readonly string[] = [], lastChain?: string): SentTexts {
  if (lastChain === undefined) return { from: 0, texts, chain: '' }
  const shared = sharedLength(last, texts)
  const chain = lastChain.slice(0, shared * LINK_LENGTH)
  // Where only a part of the last texts comes again, there may be nothing on record that ends there.
  const from = shared === last.length ? shared : 0
  return { from, texts: texts.slice(from), chain }
}

/** The last piece of a prompt is sent always: as a rule it is another one, and those before it are a node themselves. */
function newPieces(pieces: readonly string[], last?: readonly string[], lastChain?: string): SentTexts {
  const { from, chain } = newTexts(pieces.slice(0, -1), last?.slice(0, -1), lastChain)
  return { from, texts: pieces.slice(from), chain }
}

function newTools(tools: string | null, last: LastRequest | undefined): SentTurn['tools'] {
  const hash = last?.recorded?.toolsHash
  return typeof hash === 'string' && tools === last?.tools ? { hash } : tools
}

/** How many texts the two begin with alike. */
function sharedLength(left: readonly string[], right: readonly string[]): number {
  const difference = left.findIndex((text, place) => text !== right[place])
  return difference === -1 ? left.length : difference
}

function charsOf({ messages, prompt, tools }: LastRequest): number {
  return [...messages, ...prompt].reduce((sum, { length }) => sum + length, tools?.length ?? 0)
}
