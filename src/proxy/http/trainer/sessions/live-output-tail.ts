import type { ToolCall } from '../../../../protocol/canonical/messages.ts'
import type { InFlightTurn } from '../../../session/state/live-turn.ts'

/** The interval at which changed tool calls are sent: all of them each time, and their arguments may be megabytes. */
const TOOL_CALLS_MS = 1_000

/** The lengths of a turn's output that have been sent. */
interface OutputLengths {
  text: number
  reasoning: number
  /** The length of all strings of the tool calls, and their number. */
  toolCalls: number
  /** When tool calls were sent, in the clock of the collector. */
  toolCallsSentAtMs: number
}

const NOTHING_SENT: OutputLengths = {
  text: 0,
  reasoning: 0,
  toolCalls: 0,
  toolCallsSentAtMs: Number.NEGATIVE_INFINITY,
}

/** A collector of the output that in-flight turns have added since the last poll. */
export class LiveOutputTail {
  readonly #clock: () => number
  #sent: ReadonlyMap<InFlightTurn, OutputLengths> = new Map()

  /** @param clock in milliseconds */
  constructor(clock = () => performance.now()) {
    this.#clock = clock
  }

  /** Returns the events for what has changed. Changed tool calls are sent once a second, and at the turn's end. */
  takeAdditions(turns: Iterable<InFlightTurn>): object[] {
    const sent = new Map<InFlightTurn, OutputLengths>()
    const events: object[] = []
    for (const turn of turns) {
      const isNew = !this.#sent.has(turn)
      const before = this.#sent.get(turn) ?? NOTHING_SENT
      const { content, reasoning, toolCalls } = turn.completion
      const now = { ...before, text: content?.length ?? 0, reasoning: reasoning?.length ?? 0 }
      const hasToolCalls = this.#areToolCallsDue(turn, before)
      if (hasToolCalls)
        Object.assign(now, { toolCalls: measureToolCalls(toolCalls), toolCallsSentAtMs: this.#clock() })
      sent.set(turn, now)
      const grew = now.text > before.text || now.reasoning > before.reasoning || hasToolCalls
      if (!isNew && !grew) continue
      events.push({
        type: isNew ? 'turn' : 'delta',
        index: turn.open.index,
        started_at: isNew ? turn.open.startedAtMs / 1000 : undefined,
        text: content?.slice(before.text) ?? '',
        reasoning: reasoning?.slice(before.reasoning) ?? '',
        ...(hasToolCalls && { tool_calls: toolCalls }),
      })
    }
    for (const { open } of [...this.#sent.keys()].filter((turn) => !sent.has(turn))) {
      events.push({ type: 'turn_closed', index: open.index })
    }
    this.#sent = sent
    return events
  }

  #areToolCallsDue({ completion: { toolCalls, end } }: InFlightTurn, before: OutputLengths): boolean {
    if (measureToolCalls(toolCalls) === before.toolCalls) return false
    return end !== undefined || this.#clock() - before.toolCallsSentAtMs >= TOOL_CALLS_MS
  }
}

/** Returns a number that differs after each change, because deltas only extend tool calls. */
function measureToolCalls(toolCalls: readonly ToolCall[]): number {
  let length = toolCalls.length
  for (const { id, function: called } of toolCalls)
    length += id.length + called.name.length + called.arguments.length
  return length
}
