/**
 * What one place of the program knows of a thing that others share, kept with the thing: it goes when that goes. To be made
 * once, when the program starts, and not for each session: each thing has room for all notes that there are.
 */

export interface Attachable {
  /** What the notes keep, each in a place of its own. */
  readonly notes: unknown[]
}

let noteCount = 0

/** Room for all notes, and no more: a list that grows by itself has room for twenty others. */
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
