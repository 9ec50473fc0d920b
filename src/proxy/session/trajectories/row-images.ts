/**
 * Reads the recorded images of a session's prompts. Each image is recorded with the first turn whose prompt contains
 * it.
 */
import type { RowImage } from '../../../protocol/schema/row.ts'
import type { TurnStep } from '../../store/port/turn-store.ts'

/** The fields of the prompt annotation that concern images. */
interface ImageAnnotations {
  from?: string
  images?: RowImage[]
}

const NO_IMAGES: readonly RowImage[] = []

/** The images of a session's turns, which must be added in index order. */
export class SessionImages {
  readonly #byTurn = new Map<string, readonly RowImage[]>()

  /** Adds a turn. @returns the images that are new in its prompt */
  add({ turnId, annotations }: Pick<TurnStep, 'turnId' | 'annotations'>): readonly RowImage[] {
    // Most sessions have no images, so parsing is skipped.
    if (this.#byTurn.size === 0 && !annotations.includes('"images"')) return NO_IMAGES
    const { prompt } = JSON.parse(annotations) as { prompt?: ImageAnnotations }
    const before = (prompt?.from !== undefined && this.#byTurn.get(prompt.from)) || NO_IMAGES
    const added = prompt?.images ?? NO_IMAGES
    if (before.length + added.length > 0)
      this.#byTurn.set(turnId, added.length === 0 ? before : [...before, ...added])
    return added
  }

  /** Returns the images of the turn's prompt, in their order. */
  getImages(turnId: string): readonly RowImage[] {
    return this.#byTurn.get(turnId) ?? NO_IMAGES
  }
}

/** Returns the last position up to `end` that is not inside an image. */
export function moveEndBeforeImage(images: readonly RowImage[], end: number): number {
  return images.find(({ at: index, tokens }) => index < end && end < index + tokens)?.at ?? end
}

/** Returns the first position from `begin` on that is not inside an image. */
export function moveBeginAfterImage(images: readonly RowImage[], begin: number): number {
  const cut = images.find(({ at: index, tokens }) => index < begin && begin < index + tokens)
  return cut === undefined ? begin : cut.at + cut.tokens
}

/** Returns the images that are completely between two positions. Their positions become relative to `begin`. */
export function selectImages(images: readonly RowImage[], begin: number, end: number): RowImage[] {
  const isWithin = ({ at: index, tokens }: RowImage) => index >= begin && index + tokens <= end
  return images.filter(isWithin).map((image) => ({ ...image, at: image.at - begin }))
}
