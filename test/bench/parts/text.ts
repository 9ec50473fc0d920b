/** Text that resembles an agent's conversation: words, code, quotes and line ends, which JSON must escape. */

const WORDS = (
  'the file test error line function value return import path server request answer token model agent call run ' +
  'check change result expected actual module object string number array index count start end open close read ' +
  'write build fails passes because after before when then with without from into over under first last next'
).split(' ')
const MARKS = ['. ', ', ', '; ', ':\n', '\n', '()\n    ', ' "', '" ', ' = ', '\t']
/** The approximate share of words that are followed by a punctuation mark instead of a space. */
const MARK_SHARE = 1 / 6

/**
 * Generates text.
 * @returns `length` ASCII characters, equal for equal seeds
 */
export function generateProse(length: number, seed: number): string {
  const random = seededRandom(seed)
  let text = ''
  while (text.length < length) {
    text += WORDS[Math.floor(random() * WORDS.length)]
    text += random() < MARK_SHARE ? MARKS[Math.floor(random() * MARKS.length)] : ' '
  }
  return text.slice(0, length)
}

/**
 * Mulberry32: small, uniform, and good enough for texts and times.
 * @returns a generator of numbers from 0 to below 1
 */
export function seededRandom(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
