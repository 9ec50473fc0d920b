/**
 * The weight version that a trainer has announced to the proxy. It applies to engines that report none; a version that
 * an engine reports has precedence.
 */
export class WeightAnnouncement {
  /** The version as the trainer wrote it; null: none. */
  announced: string | number | null = null

  /** The version as text, as the store requires. */
  get version(): string | undefined {
    return this.announced === null ? undefined : String(this.announced)
  }
}
