/**
 * How large Qwen's vision models see an image: `smart_resize` of transformers
 * (`models/qwen2_vl/image_processing_qwen2_vl.py`, 5.23). Sides are multiples of a factor, and their product is within
 * bounds. The differential suite compares it with transformers' own.
 */

export interface ImageSide {
  /** In pixels. */
  readonly width: number
  readonly height: number
}

interface ResizeBounds {
  /** A side of the square that becomes one token, in pixels. */
  readonly factor: number
  readonly minPixels: number
  readonly maxPixels: number
}

/** Images that are longer than this beside their width are refused. */
const MAX_RATIO = 200

/** @returns undefined for an image that is too long and narrow */
export function smartResize({ width, height }: ImageSide, bounds: ResizeBounds): ImageSide | undefined {
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

/** As Python's `round`: a half goes to the even neighbour. */
function roundHalfEven(value: number): number {
  const below = Math.floor(value)
  if (value - below !== 0.5) return Math.round(value)
  return below % 2 === 0 ? below : below + 1
}
