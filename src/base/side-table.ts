/** An object that data can be attached to. */
export interface Attachable {
  /** The attached values, one slot for each table. */
  readonly notes: unknown[]
}

let tableCount = 0

/** Returns slots for all tables, exactly as many as needed: an array that grows would allocate about twenty more. */
export function createAttachmentSlots(): unknown[] {
  return new Array(tableCount)
}

/**
 * Data that a module attaches to shared objects, and that is released with them. It must be created at module level
 * when the program starts, not per session: each object has a slot for every table.
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
