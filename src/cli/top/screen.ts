/** The terminal while `top` has it: a screen of its own, and the one from before when it leaves. */

/** The other screen; no cursor; a line that is too long is cut at the edge. */
const ENTER = '\u001b[?1049h\u001b[?25l\u001b[?7l'
const LEAVE = '\u001b[?7h\u001b[?25h\u001b[?1049l'
const HOME = '\u001b[H'
const CLEAR_LINE = '\u001b[K'
const CLEAR_REST = '\u001b[J'
const CTRL_C = '\u0003'

/** A terminal that is written to. */
export type Output = Pick<NodeJS.WriteStream, 'isTTY' | 'rows' | 'write' | 'on' | 'off'>

/** A terminal that is typed at. */
export type Input = Pick<NodeJS.ReadStream, 'isTTY' | 'setRawMode' | 'resume' | 'pause' | 'on' | 'off'>

export class Screen implements Disposable {
  readonly #out: Output
  readonly #in: Input
  readonly #onKey: (data: Buffer) => void
  readonly #onResize = () => this.#paint()
  #linesFor: (height: number) => readonly string[] = () => []

  /** @param leave is called when `q` or Ctrl+C is typed */
  constructor(out: Output, input: Input, leave: () => void) {
    this.#out = out
    this.#in = input
    this.#onKey = (data) => {
      const typed = data.toString()
      if (typed.includes('q') || typed.includes(CTRL_C)) leave()
    }
    out.write(ENTER)
    out.on('resize', this.#onResize)
    if (!input.isTTY) return
    // What is typed must not show on the screen; Ctrl+C is a key like others then.
    input.setRawMode(true)
    input.on('data', this.#onKey)
    input.resume()
  }

  /** @param linesFor what is to be seen in so many lines; asked again when the terminal's size changes */
  show(linesFor: (height: number) => readonly string[]): void {
    this.#linesFor = linesFor
    this.#paint()
  }

  [Symbol.dispose](): void {
    this.#out.off('resize', this.#onResize)
    this.#out.write(LEAVE)
    if (!this.#in.isTTY) return
    this.#in.off('data', this.#onKey)
    this.#in.setRawMode(false)
    this.#in.pause()
  }

  /** In one piece, over what was there: a screen that is emptied first flickers. */
  #paint(): void {
    const height = this.#out.rows || 24
    const lines = this.#linesFor(height).slice(0, height)
    this.#out.write(HOME + lines.map((line) => line + CLEAR_LINE).join('\r\n') + CLEAR_REST)
  }
}
