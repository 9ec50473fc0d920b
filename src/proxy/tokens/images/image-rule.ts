/**
 * How many tokens an image is for a model, by the model's own files. A prompt has one placeholder where an image stands
 * when the template has rendered it, and as many as the image has tokens when the model sees it.
 */
import { join } from 'node:path'
import { readModelJson } from '../tokenizer/model-file.ts'
import { type ImageSide, smartResize } from './smart-resize.ts'

export interface ImageRule {
  /** The placeholder's id. */
  readonly tokenId: number
  /** @returns undefined for an image that the model's processor refuses for its shape */
  tokensOf(image: ImageSide): number | undefined
}

/**
 * Image processors whose rule is {@link smartResize}: of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and who took it over.
 */
const QWEN_PROCESSORS = /^Qwen2(_5)?VLImageProcessor(Fast|Pil)?$/
/** What they are built with where the file does not say. */
const QWEN_DEFAULTS = { patch: 14, merge: 2, minPixels: 56 * 56, maxPixels: 28 * 28 * 1280 }
const QWEN_PLACEHOLDER = '<|image_pad|>'

/** `preprocessor_config.json`, or the `image_processor` of `processor_config.json`, as far as it is read here. */
interface ProcessorConfig {
  image_processor_type?: string
  do_resize?: boolean | null
  patch_size?: number | null
  merge_size?: number | null
  min_pixels?: number | null
  max_pixels?: number | null
  size?: { shortest_edge?: number; longest_edge?: number } | null
}

/**
 * @param addedTokens ids by text
 * @returns undefined for a model without images, and for one whose rule is not known here
 * @throws ProxyError `config_invalid` if a file is broken
 */
export function readImageRule(
  directory: string,
  addedTokens: ReadonlyMap<string, number>,
): ImageRule | undefined {
  const config = readProcessor(directory)
  const model = readModelJson<{ image_token_id?: number }>(join(directory, 'config.json'))
  const tokenId = model?.image_token_id ?? addedTokens.get(QWEN_PLACEHOLDER)
  if (config === undefined || tokenId === undefined) return undefined
  return QWEN_PROCESSORS.test(config.image_processor_type ?? '') ? qwenRule(config, tokenId) : undefined
}

function readProcessor(directory: string): ProcessorConfig | undefined {
  return (
    readModelJson<ProcessorConfig>(join(directory, 'preprocessor_config.json')) ??
    readModelJson<{ image_processor?: ProcessorConfig }>(join(directory, 'processor_config.json'))
      ?.image_processor
  )
}

/** Whether the model's files speak of no images at all: it reads text, and nothing else. */
export function isTextOnly(directory: string): boolean {
  const model = readModelJson<{ vision_config?: unknown; image_token_id?: unknown }>(
    join(directory, 'config.json'),
  )
  const hasEyes = (model?.vision_config ?? model?.image_token_id ?? null) !== null
  return !hasEyes && readProcessor(directory) === undefined
}

function qwenRule(config: ProcessorConfig, tokenId: number): ImageRule | undefined {
  // Sides as they come would have to be multiples of the factor, which no agent keeps to.
  if (config.do_resize === false) return undefined
  const factor = (config.patch_size ?? QWEN_DEFAULTS.patch) * (config.merge_size ?? QWEN_DEFAULTS.merge)
  const bounds = {
    factor,
    minPixels: config.min_pixels ?? config.size?.shortest_edge ?? QWEN_DEFAULTS.minPixels,
    maxPixels: config.max_pixels ?? config.size?.longest_edge ?? QWEN_DEFAULTS.maxPixels,
  }
  return {
    tokenId,
    tokensOf: (image) => {
      const seen = smartResize(image, bounds)
      return seen && (seen.width / factor) * (seen.height / factor)
    },
  }
}
