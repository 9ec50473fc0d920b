/**
 * Port: what `llm-proxy sessions import` has put into the store. An item stays listed after it was deleted, so that a second
 * import does not put it back.
 */
export interface ImportedItem {
  readonly kind: 'session' | 'consumer'
  /** The id of a session, or the name of a consumer. */
  readonly name: string
  /** Milliseconds since the epoch. With the name it identifies the item: a later one of the same name is another one. */
  readonly createdAtMs: number
}

export interface ImportReader {
  wasImported(item: ImportedItem): Promise<boolean>
}

export interface ImportStore {
  /** Adds an item to the list of imports, or removes it. */
  setImported(item: ImportedItem, isImported: boolean): Promise<void>
}
