/** The images of a session's prompts, as turns have them on record: each with the turn whose prompt had it first. */
import type { TurnStep } from '../../store/port/turn-store.ts'

/** One image, under the names that it has on the wire. */
export interface RowImage {
  /** Of its bytes, in hexadecimal. */
  sha256: string
  media_type: string
  /** In pixels. */
  width: number
  height: number
  /** The place of its first token; in a row, among the tokens of prompt and response. */
  at: number
  /** How many tokens stand for it. */
  tokens: number
}

interface RecordedImages {
  from?: string
  images?: RowImage[]
}

const NO_IMAGES: readonly RowImage[] = []

/** Takes the turns of a session in call order. */
export class SessionImages {
  readonly #byTurn = new Map<string, readonly RowImage[]>()

  /** @returns the images that are new with this turn */
  add({ turnId, annotations }: Pick<TurnStep, 'turnId' | 'annotations'>): readonly RowImage[] {
    // Most sessions have none, and nothing of theirs is read.
    if (this.#byTurn.size === 0 && !annotations.includes('"images"')) return NO_IMAGES
    const { prompt } = JSON.parse(annotations) as { prompt?: RecordedImages }
    const before = (prompt?.from !== undefined && this.#byTurn.get(prompt.from)) || NO_IMAGES
    const added = prompt?.images ?? NO_IMAGES
    if (before.length + added.length > 0)
      this.#byTurn.set(turnId, added.length === 0 ? before : [...before, ...added])
    return added
  }

  /** Of the turn's prompt, in order. */
  of(turnId: string): readonly RowImage[] {
    return this.#byTurn.get(turnId) ?? NO_IMAGES
  }
}

/** Where a row may end that should end here: not within an image. */
export function endOutside(images: readonly RowImage[], end: number): number {
  return images.find(({ at, tokens }) => at < end && end < at + tokens)?.at ?? end
}

/** Where a row may begin that should begin here. */
export function beginOutside(images: readonly RowImage[], begin: number): number {
  const cut = images.find(({ at, tokens }) => at < begin && begin < at + tokens)
  return cut === undefined ? begin : cut.at + cut.tokens
}

/** Those that are left between two places, as the row between them has them. */
export function imagesWithin(images: readonly RowImage[], begin: number, end: number): RowImage[] {
  const isWithin = ({ at, tokens }: RowImage) => at >= begin && at + tokens <= end
  return images.filter(isWithin).map((image) => ({ ...image, at: image.at - begin }))
}
