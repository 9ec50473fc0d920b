/** `count_tokens` in token mode counts images as the receiving engine does. */
import { join } from 'node:path'
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'
import { startVisionEngine } from '../helpers/vision-engine.ts'
import { createPngUrl, writeVisionModel } from '../helpers/vision-model.ts'

/** Published processors, and the number of tokens that transformers counts for each image. */
const FAMILIES = {
  'Qwen2.5-VL': {
    processor: undefined,
    images: [
      { width: 56, height: 84, tokens: 6 },
      { width: 28, height: 28, tokens: 4 },
    ],
  },
  'Qwen3-VL': {
    processor: {
      image_processor_type: 'Qwen2VLImageProcessorFast',
      size: { shortest_edge: 65_536, longest_edge: 16_777_216 },
      patch_size: 16,
      merge_size: 2,
    },
    images: [
      { width: 320, height: 256, tokens: 80 },
      { width: 640, height: 320, tokens: 200 },
    ],
  },
}

/** Creates an Anthropic content block. */
function createImageBlock({ width, height }: { width: number; height: number }) {
  const [, data] = createPngUrl(width, height).split(',')
  return { type: 'image', source: { type: 'base64', media_type: 'image/png', data } }
}

for (const [family, { processor, images }] of Object.entries(FAMILIES)) {
  t.test(`${family}: the count equals the prompt of the following request`, async (t) => {
    const { directory, imageId } = writeVisionModel(t, processor)
    const engine = await startVisionEngine(
      t,
      imageId,
      images.map(({ tokens }) => tokens),
    )
    const config = { tokenizer: directory, engineUrls: [engine.url], engineKind: 'sglang' as const }
    const proxy = await startProxy(t, { ...config, db: join(directory, 'proxy.db') })
    const messages: object[] = [
      { role: 'user', content: [createImageBlock(images[0]!), { type: 'text', text: 'Well?' }] },
    ]
    for (const turn of [0, 1]) {
      const body = { model: 'm', max_tokens: 8, messages }
      const { input_tokens: counted } = await proxy.post('/s/v1/messages/count_tokens', body)
      const { content } = await proxy.post('/s/v1/messages', body)
      const { turns } = await proxy.get('/sessions/s')
      const { prompt_token_ids: prompt, exact } = turns[turn]
      t.ok(exact)
      t.equal(counted, prompt.length)
      const placeholders = prompt.filter((id: number) => id === imageId).length
      const seen = images.slice(0, turn + 1).reduce((sum, { tokens }) => sum + tokens, 0)
      t.equal(placeholders, seen, 'the prompt contains the images')
      messages.push({ role: 'assistant', content }, { role: 'user', content: [createImageBlock(images[1]!)] })
    }
  })
}
