/**
 * Images beside token ids for vLLM. `/v1/completions` takes none; `/inference/v1/generate` takes them as features: the
 * tensors that vLLM's own processor makes, which `/v1/chat/completions/render` gives for messages, and the places of the
 * placeholders in the ids (`vllm/entrypoints/scale_out/token_in_token_out/protocol.py`, `MultiModalFeatures`; in
 * `vllm/entrypoints/serve/disagg/` before). Only the features of what is rendered there are used: the ids are ours.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import { imagePartsOf, imageRuns, type PromptImages } from '../../../../protocol/canonical/images.ts'
import type { TokenRequest } from '../wire/request.ts'

export const RENDER_PATH = '/v1/chat/completions/render'

/** All images in one message: their order is that of the prompt, and nothing else of it matters. */
export function vllmRenderBody({ body }: TokenRequest): Record<string, unknown> {
  const content = body.messages.flatMap((message) =>
    imagePartsOf(message).map(({ url }) => ({ type: 'image_url', image_url: { url } })),
  )
  return { model: body.model, messages: [{ role: 'user', content }] }
}

interface Features {
  mm_hashes: { image: unknown[] }
  mm_placeholders: { image: { offset: number; length: number }[] }
  kwargs_data: { image: unknown[] }
}

/**
 * The features of a rendered prompt, with the places that the images have in the prompt of ids.
 * @throws ProxyError `unsupported` if this vLLM tells none; `engine_failed` if it counts other tokens for an image
 */
export function placedFeatures(
  rendered: unknown,
  { promptTokenIds }: TokenRequest,
  images: PromptImages,
  engine: string,
): object {
  const features = isRecord(rendered) ? rendered.features : undefined
  if (!isFeatures(features)) {
    throw new ProxyError(
      'unsupported',
      `the engine at ${engine} takes no images beside token ids: ${RENDER_PATH} of this vLLM gives no kwargs_data`,
      { param: 'messages' },
    )
  }
  const counted = features.mm_placeholders.image.map(({ length }) => length)
  if (String(counted) !== String(images.tokens)) {
    throw new ProxyError(
      'engine_failed',
      `the engine at ${engine} counts ${counted} tokens for the images, and the model's files say ${images.tokens}: ` +
        'it must run with the image processor of these files',
    )
  }
  return { ...features, mm_placeholders: { image: imageRuns(promptTokenIds.whole(), images) } }
}

function isFeatures(features: unknown): features is Features {
  if (!isRecord(features)) return false
  const lists = ['mm_hashes', 'mm_placeholders', 'kwargs_data'].map((name) => {
    const field = features[name]
    return isRecord(field) && Array.isArray(field.image) ? field.image : undefined
  })
  // null stands for what the engine would have to find in a cache, which may have lost it.
  return lists.every((list) => list?.every((item) => item !== null))
}
