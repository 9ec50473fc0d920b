/** The tool calls of one answer, under the ids that the agent sees. */
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import type { CallIds, CallNames } from '../matching/call-ids.ts'

export class DrawnCalls {
  readonly #ids: CallIds
  readonly #byIndex = new Map<number, string>()
  /** Of the calls so far: drawn ids, and what the model or its engine calls them. */
  readonly names: CallNames = {}

  /** @param ids of the session */
  constructor(ids: CallIds) {
    this.#ids = ids
  }

  get isEmpty(): boolean {
    return this.#byIndex.size === 0
  }

  /** Events as the agent is to have them. Those without calls stay what they are. */
  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    if (!events.some((event) => event.type === 'delta' && event.toolCalls !== undefined)) return events
    return events.map((event) =>
      event.type === 'delta' && event.toolCalls !== undefined
        ? { ...event, toolCalls: event.toolCalls.map((piece) => this.#readPiece(piece)) }
        : event,
    )
  }

  /** A call is named with its first piece; engines may say its id with that one, with a later one, or with each. */
  #readPiece({ id: own, ...piece }: ToolCallDelta): ToolCallDelta {
    const known = this.#byIndex.get(piece.index)
    const id = known ?? this.#ids.draw(own)
    this.#byIndex.set(piece.index, id)
    if (own || known === undefined) {
      const name = this.names[id] ?? (own || null)
      this.names[id] = name
      this.#ids.learn({ [id]: name })
    }
    return known === undefined ? { ...piece, id } : piece
  }
}
