/**
 * The sizes at which vision models see an image, as in transformers 5.19 to 5.23; the differential suite compares each
 * with the original.
 */

export interface ImageSide {
  /** The width in pixels. */
  readonly width: number
  readonly height: number
}

interface ResizeBounds {
  /** The side, in pixels, of the square that becomes one token. */
  readonly factor: number
  readonly minPixels: number
  readonly maxPixels: number
}

/** Images with a larger ratio of length to width are rejected. */
const MAX_RATIO = 200

/**
 * Returns Qwen's size: sides are multiples of a factor, and their product is within bounds
 * (`models/qwen2_vl/image_processing_qwen2_vl.py`).
 * @returns undefined for an image that is too long and narrow
 */
export function computeSmartResize(
  { width, height }: ImageSide,
  bounds: ResizeBounds,
): ImageSide | undefined {
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

/** Rounds like Python's `round`: a half is rounded to the even neighbour. */
function roundHalfEven(value: number): number {
  const below = Math.floor(value)
  if (value - below !== 0.5) return Math.round(value)
  return below % 2 === 0 ? below : below + 1
}

/**
 * Returns GLM's size (`models/glm4v/image_processing_glm4v.py`): an image that is smaller than one token is enlarged
 * first.
 * @returns see {@link computeSmartResize}
 */
export function computeGlmResize({ width, height }: ImageSide, bounds: ResizeBounds): ImageSide | undefined {
  const { factor } = bounds
  if (Math.min(width, height) >= factor) return computeSmartResize({ width, height }, bounds)
  const scale = Math.max(factor / height, factor / width)
  return computeSmartResize({ width: Math.trunc(width * scale), height: Math.trunc(height * scale) }, bounds)
}

/**
 * Returns Gemma 4's token count (`models/gemma4/image_processing_gemma4.py`): the image is scaled to the largest size
 * within the token limit that keeps its aspect ratio. An image too narrow for that becomes a single row of all tokens.
 * @param factor the side, in pixels, of the square that becomes one token
 */
export function countGemmaTokens(
  { width, height }: ImageSide,
  { factor, maxTokens }: { factor: number; maxTokens: number },
): number {
  const scale = Math.sqrt((maxTokens * factor * factor) / (height * width))
  const squares = (side: number) => Math.floor((scale * side) / factor)
  const tokens = squares(width) * squares(height)
  return tokens === 0 ? maxTokens : tokens
}

interface PatchBounds {
  /** The side of a patch, in pixels. */
  readonly patch: number
  readonly merge: number
  readonly maxPatches: number
  readonly maxSidePatches: number
}

/**
 * Returns Kimi K2.5's token count (`navit_resize` in `models/kimi_k25/image_processing_kimi_k25.py`): the image is
 * never enlarged, and is padded to complete tokens.
 */
export function countKimiTokens({ width, height }: ImageSide, bounds: PatchBounds): number {
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
