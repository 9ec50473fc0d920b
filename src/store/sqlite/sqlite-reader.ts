/** Reads sessions and turns through the reader thread. */
import type { ProxyError } from '../../errors.ts'
import { decodeCursor } from '../session-list.ts'
import type { SessionPage, SessionQuery, SessionRecord, TurnRecord, TurnStore } from '../turn-store.ts'
import type { PagedTurn, ReadMethods } from './reader.ts'
import type { StoreThread } from './store-thread.ts'

type ReadPort = Pick<TurnStore, 'getSession' | 'listSessions' | 'readTurns' | 'getTurn' | 'close'>

export class SqliteReader implements ReadPort {
  readonly #thread: StoreThread<ReadMethods>
  #lastReading = 0

  constructor(thread: StoreThread<ReadMethods>) {
    this.#thread = thread
  }

  getSession(sessionId: string): Promise<SessionRecord | undefined> {
    return this.#thread.call('getSession', [sessionId])
  }

  async listSessions(query: SessionQuery): Promise<SessionPage> {
    if (query.cursor !== undefined) decodeCursor(query.cursor)
    return this.#thread.call('listSessions', [query])
  }

  async *readTurns(sessionId: string): AsyncIterable<TurnRecord> {
    this.#lastReading += 1
    const reading = this.#lastReading
    const assembler = new TurnAssembler()
    let done = false
    try {
      while (!done) {
        const page = await this.#thread.call('readPage', [reading, sessionId])
        done = page.done
        assembler.addTexts(page.texts)
        for (const turn of page.turns) yield assembler.assemble(turn)
      }
    } finally {
      // The consumer left early. A thread that is gone has forgotten the reading anyway.
      if (!done) this.#thread.call('endReading', [reading]).catch(() => {})
    }
  }

  async getTurn(sessionId: string, turnId: string): Promise<TurnRecord | undefined> {
    const { texts, turns } = await this.#thread.call('readTurn', [sessionId, turnId])
    const assembler = new TurnAssembler()
    assembler.addTexts(texts)
    return turns[0] && assembler.assemble(turns[0])
  }

  /** As {@link StoreThread.lost}. */
  get lost(): Promise<ProxyError> {
    return this.#thread.lost
  }

  close(): Promise<void> {
    return this.#thread.close()
  }
}

/** Puts turns together again. Turns share the strings of their common messages, so that memory grows with the text. */
class TurnAssembler {
  readonly #texts = new Map<number, string>()
  #messages: readonly string[] = []

  addTexts(texts: [number, string][]): void {
    for (const [id, text] of texts) this.#texts.set(id, text)
  }

  assemble({ sharedMessages, newMessages, ...turn }: PagedTurn): TurnRecord {
    const added = newMessages.map((id) => this.#text(id))
    this.#messages = [...this.#messages.slice(0, sharedMessages), ...added]
    return {
      ...turn,
      requestMessages: this.#messages,
      tools: turn.tools === null ? null : this.#text(turn.tools),
      params: this.#text(turn.params),
    }
  }

  #text(id: number): string {
    return this.#texts.get(id)!
  }
}
