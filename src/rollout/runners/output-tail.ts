/** The end of a program's output, which usually contains the reason for a failure. */
export class OutputTail {
  readonly #limitBytes: number
  #chunks: Buffer[] = []
  #length = 0
  #dropped = 0

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes
  }

  add(chunk: Buffer): void {
    this.#chunks.push(chunk)
    this.#length += chunk.length
    while (this.#length - this.#chunks[0]!.length >= this.#limitBytes) {
      const first = this.#chunks.shift()!
      this.#length -= first.length
      this.#dropped += first.length
    }
  }

  /** Returns the text, preceded by a line with the number of omitted bytes, if any. */
  getText(): string {
    const excess = Math.max(0, this.#length - this.#limitBytes)
    const text = Buffer.concat(this.#chunks).subarray(excess).toString()
    const dropped = this.#dropped + excess
    return dropped === 0 ? text : `[${dropped} bytes before this are left out]\n${text}`
  }
}
