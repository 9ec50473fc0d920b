/**
 * The files of a model that accepts images: the embedded tokenizer, with Qwen's placeholders and their rule.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { readTokenizerFiles } from '../../src/proxy/tokens/tokenizer/tokenizer-files.ts'

const EMBEDDED = join(import.meta.dirname, '../../src/embedded/model')
const PLACEHOLDERS = ['<|vision_start|>', '<|image_pad|>', '<|vision_end|>']

/** ChatML with images in messages, numbered on request; tool results may contain them, too. */
const TEMPLATE = `{%- set ns = namespace(images=0) %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{%- for item in message.content %}
{%- if item.type == 'image' %}
{%- set ns.images = ns.images + 1 %}
{%- if add_vision_id %}{{ 'Picture ' ~ ns.images ~ ': ' }}{% endif %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{ item.text }}{% endif %}
{%- endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}`

/** Qwen2.5-VL's configuration, as published. */
const PROCESSOR = {
  image_processor_type: 'Qwen2VLImageProcessor',
  min_pixels: 3136,
  max_pixels: 12845056,
  patch_size: 14,
  merge_size: 2,
  temporal_patch_size: 2,
}

interface VisionModel {
  readonly directory: string
  /** The placeholder's id. */
  readonly imageId: number
}

/** A template that omits images in tool results, as Gemma 4's does. */
export const TEMPLATE_BLIND_TO_TOOLS = TEMPLATE.replace(
  "{%- if item.type == 'image' %}",
  "{%- if item.type == 'image' and message.role == 'tool' %}{%- elif item.type == 'image' %}",
)

/**
 * Writes the model.
 * @param processor null: none
 */
export function writeVisionModel(
  t: Test,
  processor: object | null = PROCESSOR,
  template = TEMPLATE,
): VisionModel {
  const directory = t.testdir()
  const { tokenizerJson, tokenizerConfig } = readTokenizerFiles(EMBEDDED)
  const added = tokenizerJson.added_tokens ?? []
  const first = Math.max(...added.map(({ id }) => id)) + 1
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }
  const more = PLACEHOLDERS.map((content, index) => ({ id: first + index, content, ...flags }))
  const write = (name: string, value: object) => writeFileSync(join(directory, name), JSON.stringify(value))
  write('tokenizer.json', { ...tokenizerJson, added_tokens: [...added, ...more] })
  write('tokenizer_config.json', { ...tokenizerConfig, chat_template: template })
  write('config.json', { model_type: 'qwen2_5_vl', image_token_id: first + 1, max_position_embeddings: 4096 })
  if (processor !== null) write('preprocessor_config.json', processor)
  return { directory, imageId: first + 1 }
}

/** Creates the URL of a PNG of this size; only the header that contains the size is valid. */
export function createPngUrl(width: number, height: number): string {
  const bytes = Buffer.alloc(33)
  bytes.write('\x89PNG\r\n\x1a\n\0\0\0\rIHDR', 'latin1')
  bytes.writeUInt32BE(width, 16)
  bytes.writeUInt32BE(height, 20)
  return `data:image/png;base64,${bytes.toString('base64')}`
}

export function createImagePart(url: string) {
  return { type: 'image_url' as const, image_url: { url } }
}
