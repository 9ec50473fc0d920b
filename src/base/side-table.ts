/** An object that data can be attached to. */
export interface Attachable {
  /** The attached values, one slot for each {@link SideTable}. */
  readonly notes: unknown[]
}

let tableCount = 0

/**
 * Returns an array with one slot for each table. It is allocated at its final length, because a growing array would
 * reserve about twenty more slots.
 */
export function createAttachmentSlots(): unknown[] {
  return new Array(tableCount)
}

/**
 * A table of values that a module attaches to shared objects. A value is released with its object. Tables must be
 * created at module level when the program starts, not per session, because each object has a slot for every table.
 */
export class SideTable<Target extends Attachable, Value> {
  readonly #slot = tableCount++

  get(target: Target): Value | undefined {
    return target.notes[this.#slot] as Value | undefined
  }

  /** Attaches a value. @returns the value */
  attach(target: Target, value: Value): Value {
    target.notes[this.#slot] = value
    return value
  }
}
