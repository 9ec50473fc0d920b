/** Reproducible random choices, and texts that are difficult for tokenizers, templates and parsers. */
import { seededRandom } from '../../bench/parts/text.ts'

const WORDS = (
  'the sea is deep and cold, we sail at dawn with a small crew and bread for ten days; the wind turns north. ' +
  'Größe und Maß naïve café 東京の天気は晴れです。 Привет мир 🙂👩‍👩‍👧 🏳️‍🌈 İstanbul ﷺ zero\u200bwidth x² ≤ y³ e\u0301 ' +
  'def f(x): return x * 2 \\n "quoted" <b>bold</b> {"a": [1, 2.5, null]} \t tab 1000.0 9007199254740993'
).split(' ')
const WHITE = ['\n', '\n\n', '  ', ' \t', '\r\n', '\u00a0', '\u2028', '\ufffd']
const MARKUP = ['<|im_end|>', '<|im_start|>user', '<tool_call>', '<think>', '</think>', '<|endoftext|>']
const SPECIAL = [...WHITE, ...MARKUP]
const SPECIAL_SHARE = 0.08

export class Dice {
  readonly #random: () => number

  constructor(seed: number) {
    this.#random = seededRandom(seed)
  }

  /** Returns an integer from `min` to `max`, inclusive. */
  int(min: number, max: number): number {
    return min + Math.floor(this.#random() * (max - min + 1))
  }

  chance(share: number): boolean {
    return this.#random() < share
  }

  pick<T>(list: readonly T[]): T {
    return list[this.int(0, list.length - 1)]!
  }

  text(maxWords: number): string {
    const count = this.int(1, maxWords)
    return Array.from({ length: count }, () => this.pick(this.chance(SPECIAL_SHARE) ? SPECIAL : WORDS)).join(
      ' ',
    )
  }
}
