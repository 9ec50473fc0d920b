/**
 * A side table: data that a module attaches to shared objects and that is released with them. Must be created at module
 * level when the program starts, not per session: each object has a slot for every table.
 */

export interface Attachable {
  /** The attached values, one slot for each table. */
  readonly notes: unknown[]
}

let noteCount = 0

/** Returns slots for all tables, exactly as many as needed: an array that grows would allocate about twenty more. */
export function createAttachmentSlots(): unknown[] {
  return new Array(noteCount)
}

export class SideTable<Thing extends Attachable, Known> {
  readonly #place = noteCount++

  of(thing: Thing): Known | undefined {
    return thing.notes[this.#place] as Known | undefined
  }

  put(thing: Thing, known: Known): Known {
    thing.notes[this.#place] = known
    return known
  }
}
