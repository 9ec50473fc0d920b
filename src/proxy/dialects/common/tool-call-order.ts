import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'

/**
 * A buffer that orders the deltas of tool calls for streams that write one item at a time: a tool call is complete
 * before the next one begins. An engine may interleave the deltas of tool calls; those of a later one wait until the
 * arguments of the one before are a complete JSON object, or until the end.
 */
export class ToolCallOrder {
  #current: ToolCallArguments | undefined
  readonly #waiting = new Map<number, ToolCallDelta>()
  /**
   * The indices of all tool calls that have waited, in order. They are in a list because iterating over `#waiting`
   * steps over each deleted entry.
   */
  readonly #queue: number[] = []
  #released = 0
  readonly #complete = new Set<number>()

  /**
   * Returns the deltas that can be written now. A delta of a tool call that was completed before is dropped, unless it
   * has arguments: it is then returned, and the caller rejects it.
   */
  add(delta: ToolCallDelta): ToolCallDelta[] {
    this.#current ??= new ToolCallArguments(delta.index)
    if (delta.index === this.#current.index) {
      this.#current.add(delta)
      return this.#waiting.size === 0 ? [delta] : [delta, ...this.#release()]
    }
    if (this.#complete.has(delta.index)) return hasArguments(delta) ? [delta] : []
    const before = this.#waiting.get(delta.index)
    if (before === undefined) this.#queue.push(delta.index)
    this.#waiting.set(delta.index, before ? join(before, delta) : delta)
    return this.#release()
  }

  /** Whether the arguments of the last tool call whose deltas were returned are a complete JSON object. */
  get isComplete(): boolean {
    return this.#current?.isComplete() ?? false
  }

  /** Returns the deltas that still wait, at the end of the completion. */
  end(): ToolCallDelta[] {
    const waiting = [...this.#waiting.values()]
    this.#waiting.clear()
    this.#released = this.#queue.length
    return waiting
  }

  #release(): ToolCallDelta[] {
    const released: ToolCallDelta[] = []
    while (this.#released < this.#queue.length && this.#current!.isComplete()) {
      const index = this.#queue[this.#released++]!
      const delta = this.#waiting.get(index)!
      this.#waiting.delete(index)
      this.#complete.add(this.#current!.index)
      this.#current = new ToolCallArguments(index)
      this.#current.add(delta)
      released.push(delta)
    }
    return released
  }
}

/**
 * Returns whether a delta has arguments other than white space. One without adds nothing to a tool call that has ended:
 * engines repeat the name, or end with an empty delta.
 */
export function hasArguments({ function: called }: ToolCallDelta): boolean {
  return (called?.arguments ?? '').trim() !== ''
}

function join(before: ToolCallDelta, delta: ToolCallDelta): ToolCallDelta {
  const [first, second] = [before.function, delta.function]
  const name = `${first?.name ?? ''}${second?.name ?? ''}`
  const text = `${first?.arguments ?? ''}${second?.arguments ?? ''}`
  return { ...before, ...delta, function: { ...(name !== '' && { name }), arguments: text } }
}

/** The arguments of one tool call so far. */
class ToolCallArguments {
  readonly index: number
  #depth = 0
  #isInString = false
  #isEscaped = false
  #isComplete = false

  constructor(index: number) {
    this.index = index
  }

  /** Scans the delta's arguments, each character once. */
  add({ function: called }: ToolCallDelta): void {
    for (const character of called?.arguments ?? '') {
      if (this.#isComplete) return
      this.#scan(character)
    }
  }

  /** Whether a JSON object has ended. */
  isComplete(): boolean {
    return this.#isComplete
  }

  #scan(character: string): void {
    if (this.#isEscaped) this.#isEscaped = false
    else if (this.#isInString) {
      this.#isEscaped = character === '\\'
      this.#isInString = character !== '"'
    } else if (character === '"') this.#isInString = true
    else if (character === '{' || character === '[') this.#depth += 1
    else if (character === '}' || character === ']') {
      this.#depth -= 1
      this.#isComplete = this.#depth === 0
    }
  }
}
