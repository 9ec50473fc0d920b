/**
 * The port of the items that `llm-proxy sessions import` has added to the store. An item stays listed after its
 * deletion, so that a second import does not add it again.
 */
export interface ImportEntry {
  readonly kind: 'session' | 'consumer'
  /** The id of a session, or the name of a consumer. */
  readonly name: string
  /**
   * Milliseconds since the epoch. Name and time identify the item: one created later under the same name is different.
   */
  readonly createdAtMs: number
}

export interface ImportReader {
  wasImported(item: ImportEntry): Promise<boolean>
}

export const IMPORT_READS = ['wasImported'] as const satisfies (keyof ImportReader)[]

export interface ImportStore {
  /** Adds an item to the list of imports, or removes it. */
  setImported(item: ImportEntry, isImported: boolean): Promise<void>
}

export const IMPORT_WRITES = ['setImported'] as const satisfies (keyof ImportStore)[]
