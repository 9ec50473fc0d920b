/**
 * The weight version that a trainer has announced to the proxy. It stands in for the word of an engine that reports
 * none; where an engine reports one, that one counts.
 */
export class AnnouncedWeights {
  /** As the trainer wrote it; null: none. */
  announced: string | number | null = null

  /** For the record, where versions are text. */
  get version(): string | undefined {
    return this.announced === null ? undefined : String(this.announced)
  }
}
