/**
 * Reads the rule for the number of tokens of an image from the model's files. A rendered prompt contains one
 * placeholder for each image, which is repeated as often as the image has tokens.
 */
import { join } from 'node:path'
import type { ImageDelimiters } from '../../../protocol/canonical/images.ts'
import { readModelJson } from '../tokenizer/model-file.ts'
import {
  computeGlmResize,
  computeSmartResize,
  countGemmaTokens,
  countKimiTokens,
  type ImageSize,
} from './image-sizes.ts'

/** The rule by which a model's images become tokens. */
export interface ImageRule {
  /** The id of the placeholder token. */
  readonly tokenId: number
  /** The ids to add before and after an image's tokens, if the template writes only the placeholder. */
  readonly edges?: ImageDelimiters
  /**
   * Returns the number of tokens, or undefined for an image that the model's processor rejects because of its shape.
   */
  countTokens(image: ImageSize): number | undefined
}

/** The fields of `preprocessor_config.json`, or of `image_processor` in `processor_config.json`, that are used here. */
interface ProcessorConfig {
  image_processor_type?: string
  do_resize?: boolean | null
  patch_size?: number | null
  merge_size?: number | null
  temporal_patch_size?: number | null
  min_pixels?: number | null
  max_pixels?: number | null
  size?: { shortest_edge?: number; longest_edge?: number; max_height?: number } | null
  max_soft_tokens?: number | null
  pooling_kernel_size?: number | null
  max_patches?: number | null
  /** The settings of Kimi's processor, which is code in the model's directory. */
  media_proc_cfg?: {
    patch_size?: number
    merge_kernel_size?: number
    in_patch_limit?: number
    patch_limit_on_one_side?: number
    fixed_output_tokens?: number | null
  } | null
}

/** The fields of `config.json` that are used here. */
interface VisionConfig {
  model_type?: string
  image_token_id?: number
  media_placeholder_token_id?: number
  boi_token_id?: number
  eoi_token_id?: number
}

/** Models with the same image processor. */
interface ImageFamily {
  /** Matches the names of the processor's implementations. */
  readonly processors: RegExp
  /** The placeholder's text, for models whose `config.json` does not declare its id. */
  readonly placeholder: string
  /**
   * Returns the function that counts an image's tokens; undefined if the config lacks a required setting or has an
   * unsupported one.
   */
  createCounter(config: ProcessorConfig): ImageRule['countTokens'] | undefined
  /** Returns the ids to add around an image; undefined if the config does not declare them. */
  readDelimiters?(model: VisionConfig): ImageDelimiters | undefined
}

const FAMILIES: readonly ImageFamily[] = [
  {
    // Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and models that adopted the processor.
    processors: /^Qwen2(_5)?VLImageProcessor(Fast|Pil)?$/,
    placeholder: '<|image_pad|>',
    createCounter: createQwenCounter,
  },
  {
    // GLM-4.1V, GLM-4.5V and GLM-4.6V.
    processors: /^Glm4(6V|v)ImageProcessor(Fast|Pil)?$/,
    placeholder: '<|image|>',
    createCounter: createGlmCounter,
  },
  {
    processors: /^Gemma4ImageProcessor(Fast|Pil)?$/,
    placeholder: '<|image|>',
    createCounter: createGemmaCounter,
    readDelimiters: ({ boi_token_id: begin, eoi_token_id: end }) =>
      begin === undefined || end === undefined ? undefined : [begin, end],
  },
  {
    // Kimi K2.5 and K2.6.
    processors: /^Kimi_?K25(Image|Vision)Processor(Fast|Pil)?$/,
    placeholder: '<|media_pad|>',
    createCounter: createKimiCounter,
  },
]

/**
 * Reads the rule for a model's images.
 * @param addedTokens ids by text
 * @returns undefined for a model without images, or with an unknown rule
 * @throws ProxyError `config_invalid` if a file is broken
 */
export function readImageRule(
  directory: string,
  addedTokens: ReadonlyMap<string, number>,
): ImageRule | undefined {
  const config = readProcessor(directory)
  const model = readModelJson<VisionConfig>(join(directory, 'config.json')) ?? {}
  const family = config && FAMILIES.find(({ processors }) => processors.test(getProcessor(config, model)))
  if (family === undefined) return undefined
  const tokenId =
    model.image_token_id ?? model.media_placeholder_token_id ?? addedTokens.get(family.placeholder)
  // A processor that does not resize requires images whose sides are multiples of its factor. Clients do not send such
  // images.
  const countTokens = config!.do_resize === false ? undefined : family.createCounter(config!)
  const edges = family.readDelimiters?.(model)
  if (tokenId === undefined || countTokens === undefined || (family.readDelimiters && edges === undefined))
    return undefined
  return { tokenId, countTokens, ...(edges && { edges }) }
}

/** Returns the processor's name. Kimi's config does not name its processor, which is code in the model's directory. */
function getProcessor(
  { image_processor_type: type, media_proc_cfg: media }: ProcessorConfig,
  model: VisionConfig,
): string {
  return type ?? (media && model.model_type === 'kimi_k25' ? 'KimiK25VisionProcessor' : '')
}

function readProcessor(directory: string): ProcessorConfig | undefined {
  return (
    readModelJson<ProcessorConfig>(join(directory, 'preprocessor_config.json')) ??
    readModelJson<{ image_processor?: ProcessorConfig }>(join(directory, 'processor_config.json'))
      ?.image_processor
  )
}

/** Returns whether a model has neither a vision configuration nor an image processor. */
export function isTextOnly(directory: string): boolean {
  const model = readModelJson<{ vision_config?: unknown; image_token_id?: unknown }>(
    join(directory, 'config.json'),
  )
  const hasVision = (model?.vision_config ?? model?.image_token_id ?? null) !== null
  return !hasVision && readProcessor(directory) === undefined
}

// The functions below use the defaults of transformers for settings that a config omits.

function createQwenCounter(config: ProcessorConfig): ImageRule['countTokens'] {
  const factor = (config.patch_size ?? 14) * (config.merge_size ?? 2)
  const minPixels = config.min_pixels ?? config.size?.shortest_edge ?? 56 * 56
  const maxPixels = config.max_pixels ?? config.size?.longest_edge ?? 28 * 28 * 1280
  return (image) => countSquares(computeSmartResize(image, { factor, minPixels, maxPixels }), factor)
}

/**
 * Returns the function that counts tokens for GLM. The declared bounds apply to a video with as many frames as a patch
 * has. They have no defaults here, because those of transformers differ between releases.
 */
function createGlmCounter(config: ProcessorConfig): ImageRule['countTokens'] | undefined {
  const { shortest_edge: least, longest_edge: most } = config.size ?? {}
  if (least === undefined || most === undefined) return undefined
  const factor = (config.patch_size ?? 14) * (config.merge_size ?? 2)
  const frames = config.temporal_patch_size ?? 2
  const bounds = { factor, minPixels: least / frames, maxPixels: most / frames }
  return (image) => countSquares(computeGlmResize(image, bounds), factor)
}

function countSquares(resized: ImageSize | undefined, factor: number): number | undefined {
  return resized && (resized.width / factor) * (resized.height / factor)
}

function createGemmaCounter(config: ProcessorConfig): ImageRule['countTokens'] {
  const factor = (config.patch_size ?? 16) * (config.pooling_kernel_size ?? 3)
  const maxTokens = config.max_soft_tokens ?? 280
  return (image) => countGemmaTokens(image, { factor, maxTokens })
}

function createKimiCounter(config: ProcessorConfig): ImageRule['countTokens'] | undefined {
  const media = config.media_proc_cfg
  if ((media?.fixed_output_tokens ?? null) !== null) return undefined
  const bounds = {
    patch: media?.patch_size ?? config.patch_size ?? 14,
    merge: media?.merge_kernel_size ?? config.merge_size ?? 2,
    maxPatches: media?.in_patch_limit ?? config.max_patches ?? 16_384,
    maxSidePatches: media?.patch_limit_on_one_side ?? config.size?.max_height ?? 512,
  }
  return (image) => countKimiTokens(image, bounds)
}
