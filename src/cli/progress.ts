const WIDTH = 24

interface ProgressOptions {
  /** The minimum time between two lines if there is no terminal; 0: a line for each step. */
  lineEveryMs?: number
}

/** A progress bar on a terminal, or lines of progress if there is no terminal. */
export class Progress {
  readonly #total: number
  readonly #out: NodeJS.WriteStream
  readonly #lineEveryMs: number
  #done = 0
  #note = ''
  #lastLineAtMs = Number.NEGATIVE_INFINITY
  #isLineDue = false

  constructor(total: number, out: NodeJS.WriteStream, { lineEveryMs = 0 }: ProgressOptions = {}) {
    this.#total = total
    this.#out = out
    this.#lineEveryMs = lineEveryMs
    this.#draw()
  }

  advance(note: string): void {
    this.#done += 1
    this.update(note)
  }

  /** Shows a note without advancing. */
  update(note: string): void {
    this.#note = note
    this.#draw()
    this.#isLineDue = true
    if (performance.now() - this.#lastLineAtMs >= this.#lineEveryMs) this.#writeLine()
  }

  /** Prints a message above the bar. */
  printMessage(text: string): void {
    this.#out.write(this.#out.isTTY ? `\r\u001b[2K${text}\n` : `${text}\n`)
    this.#draw()
  }

  end(): void {
    this.#writeLine()
    if (this.#out.isTTY) this.#out.write('\n')
  }

  #writeLine(): void {
    if (this.#out.isTTY || !this.#isLineDue) return
    this.#lastLineAtMs = performance.now()
    this.#isLineDue = false
    this.#out.write(`${this.#done}/${this.#total} ${this.#note}\n`)
  }

  #draw(): void {
    if (!this.#out.isTTY) return
    const filled = Math.round((this.#done / this.#total) * WIDTH)
    const bar = '█'.repeat(filled).padEnd(WIDTH, '░')
    this.#out.write(`\r\u001b[2K${bar} ${this.#done}/${this.#total} rollouts  ${this.#note}`)
  }
}
