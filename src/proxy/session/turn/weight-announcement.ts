/**
 * The weight version that a trainer has announced to the proxy. It applies to engines that report none: a version that
 * an engine reports takes precedence.
 */
export class WeightAnnouncement {
  /** The version as the trainer sent it; null: none was announced. */
  announced: string | number | null = null

  /** The version as text, which is the form in the store. */
  get version(): string | undefined {
    return this.announced === null ? undefined : String(this.announced)
  }
}
