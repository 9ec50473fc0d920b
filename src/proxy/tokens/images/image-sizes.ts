/**
 * Computes the sizes to which image processors resize an image, as in transformers 5.19 to 5.23. The differential suite
 * compares each function with the original.
 */

/** The size of an image in pixels. */
export interface ImageSize {
  readonly width: number
  readonly height: number
}

/** The bounds of a resized image. */
interface ResizeBounds {
  /** The side of the square that becomes one token, in pixels. */
  readonly factor: number
  readonly minPixels: number
  readonly maxPixels: number
}

/** The maximum ratio of an image's longer side to its shorter one. */
const MAX_RATIO = 200

/**
 * Returns the size to which Qwen's processor resizes an image: the sides are multiples of a factor, and their product
 * is within bounds (`models/qwen2_vl/image_processing_qwen2_vl.py`).
 * @returns undefined for an image that is too narrow
 */
export function computeSmartResize(
  { width, height }: ImageSize,
  bounds: ResizeBounds,
): ImageSize | undefined {
  const { factor, minPixels, maxPixels } = bounds
  if (Math.max(width, height) / Math.min(width, height) > MAX_RATIO) return undefined
  const nearest = (side: number) => roundHalfEven(side / factor) * factor
  const pixels = nearest(width) * nearest(height)
  if (pixels > maxPixels) {
    const shrink = Math.sqrt((height * width) / maxPixels)
    const below = (side: number) => Math.max(factor, Math.floor(side / shrink / factor) * factor)
    return { width: below(width), height: below(height) }
  }
  if (pixels < minPixels) {
    const grow = Math.sqrt(minPixels / (height * width))
    const above = (side: number) => Math.ceil((side * grow) / factor) * factor
    return { width: above(width), height: above(height) }
  }
  return { width: nearest(width), height: nearest(height) }
}

/** Rounds like Python's `round`: halves are rounded to the even neighbour. */
function roundHalfEven(value: number): number {
  const below = Math.floor(value)
  if (value - below !== 0.5) return Math.round(value)
  return below % 2 === 0 ? below : below + 1
}

/**
 * Returns the size to which GLM's processor resizes an image (`models/glm4v/image_processing_glm4v.py`). An image with
 * a side that is smaller than one token is enlarged first.
 * @returns see {@link computeSmartResize}
 */
export function computeGlmResize({ width, height }: ImageSize, bounds: ResizeBounds): ImageSize | undefined {
  const { factor } = bounds
  if (Math.min(width, height) >= factor) return computeSmartResize({ width, height }, bounds)
  const scale = Math.max(factor / height, factor / width)
  return computeSmartResize({ width: Math.trunc(width * scale), height: Math.trunc(height * scale) }, bounds)
}

/**
 * Returns Gemma 4's token count (`models/gemma4/image_processing_gemma4.py`): the image is scaled to the largest size
 * within the token limit that preserves its aspect ratio. An image that is too narrow for that becomes a single row of
 * `maxTokens` tokens.
 * @param factor the side of the square that becomes one token, in pixels
 */
export function countGemmaTokens(
  { width, height }: ImageSize,
  { factor, maxTokens }: { factor: number; maxTokens: number },
): number {
  const scale = Math.sqrt((maxTokens * factor * factor) / (height * width))
  const squares = (side: number) => Math.floor((scale * side) / factor)
  const tokens = squares(width) * squares(height)
  return tokens === 0 ? maxTokens : tokens
}

/** The settings of Kimi's processor. */
interface PatchBounds {
  /** The side of a patch, in pixels. */
  readonly patch: number
  /** The number of patches along each side of the square that becomes one token. */
  readonly merge: number
  /** The maximum number of patches of an image. */
  readonly maxPatches: number
  /** The maximum number of patches along a side. */
  readonly maxSidePatches: number
}

/**
 * Returns Kimi K2.5's token count (`navit_resize` in `models/kimi_k25/image_processing_kimi_k25.py`): the image is
 * reduced to the bounds but never enlarged, and padded to complete tokens.
 */
export function countKimiTokens({ width, height }: ImageSize, bounds: PatchBounds): number {
  const { patch, merge, maxPatches, maxSidePatches } = bounds
  const patches = (side: number) => Math.max(1, Math.floor(side / patch))
  const maxSide = maxSidePatches * patch
  const fits = Math.sqrt(maxPatches / (patches(width) * patches(height)))
  const scale = Math.min(1, fits, maxSide / width, maxSide / height)
  const tokens = (side: number) => {
    const pixels = Math.min(Math.max(1, Math.trunc(side * scale)), maxSide)
    return Math.ceil(pixels / (patch * merge))
  }
  return tokens(width) * tokens(height)
}
