import { hash } from 'node:crypto'
import t from 'tap'
import {
  collapseImages,
  findImageRuns,
  getImageUrls,
  splitDataUrl,
} from '../../../../src/protocol/canonical/images.ts'
import { readImageRule } from '../../../../src/proxy/tokens/images/image-rule.ts'
import {
  readImage,
  toTemplateMessage,
  withImages,
} from '../../../../src/proxy/tokens/images/prompt-images.ts'
import { createImagePart, createPngUrl, writeVisionModel } from '../../../helpers/vision-model.ts'

/** Images of 40 by 30 pixels, as Pillow writes them. */
const IMAGES = {
  'image/png':
    'iVBORw0KGgoAAAANSUhEUgAAACgAAAAeCAIAAADRv8uKAAAALElEQVR4nO3NMQEAAAQAMATRP4pYKvg8W4HldMeHelnFYrFYLBaLxWKxWHyyHdwBQE1gaCAAAAAASUVORK5CYII=',
  'image/webp':
    'UklGRkIAAABXRUJQVlA4IDYAAAAwAwCdASooAB4AP83m7XA/uDIrJWgD8DmJZwDIIBJjuugAAP7Qym79v3Z2i0xsRjzGh9AAAAA=',
  'image/gif':
    'R0lGODdhKAAeAIEAAMgeHgAAAAAAAAAAACwAAAAAKAAeAEAIOgABCBxIsKDBgwgTKlzIsKHDhxAjSpxIsaLFixgzatzIsaPHjyBDihxJsqTJkyhTqlzJsqXLlzAxBgQAOw==',
  'image/jpeg': '/9j/4AAQSkZJRgABAQAAAQABAAD/wAARCAAeACgDASIAAhEBAxEB/9k=',
}

t.test('the size of an image is read from its bytes, independent of its declared type', async (t) => {
  for (const [mediaType, base64] of Object.entries(IMAGES)) {
    const sha256 = hash('sha256', Buffer.from(base64, 'base64'), 'hex')
    const image = { width: 40, height: 30, sha256 }
    t.strictSame(readImage(`data:${mediaType};base64,${base64}`, 'x'), { ...image, mediaType })
    t.match(readImage(`DATA:;base64,${base64}`, 'x'), image)
  }
})

t.test('data that is not an image, or not in the body, is rejected with its path', async (t) => {
  const assertRejected = (url: string | undefined, code: string) =>
    t.throws(
      () => readImage(url, 'messages.0.content.1'),
      { code, param: 'messages.0.content.1' },
      url?.slice(0, 99) ?? '',
    )
  assertRejected('https://example.org/a.png', 'unsupported')
  assertRejected('data:image/png,abc', 'unsupported')
  assertRejected(`data:image/png${';a=b'.repeat(4_000_000)};base64,`, 'unsupported')
  assertRejected(undefined, 'unsupported')
  assertRejected('data:image/png;base64,', 'invalid_request')
  assertRejected(`data:image/png;base64,${IMAGES['image/png'].slice(0, 20)}`, 'invalid_request')
  assertRejected(createPngUrl(0, 10), 'invalid_request')
  const svg = Buffer.from('<svg width="10" height="10" xmlns="http://www.w3.org/2000/svg"/>').toString(
    'base64',
  )
  assertRejected(`data:image/svg+xml;base64,${svg}`, 'invalid_request')
})

/** Sides and tokens by transformers 5.23 (`Qwen2VLImageProcessorPil.get_number_of_image_patches`). */
const COUNTED = [
  [
    { patch_size: 14, size: { shortest_edge: 3136, longest_edge: 12845056 } },
    [
      [1, 1, 4],
      [14, 14, 4],
      [42, 42, 4],
      [70, 98, 8],
      [224, 224, 64],
      [1920, 1080, 2691],
      [1080, 1920, 2691],
      [8000, 6000, 16170],
      [4000, 20, 143],
      [33, 6600, 236],
      [5, 900, 27],
      [1000, 1000, 1296],
    ],
  ],
  [
    { patch_size: 16, size: { shortest_edge: 65536, longest_edge: 16777216 } },
    [
      [1, 1, 64],
      [42, 42, 64],
      [70, 98, 70],
      [224, 224, 64],
      [1920, 1080, 2040],
      [8000, 6000, 16170],
      [4000, 20, 125],
      [33, 6600, 206],
      [5, 900, 108],
      [1000, 1000, 961],
    ],
  ],
  [
    {},
    [
      [1, 1, 4],
      [70, 98, 8],
      [1920, 1080, 1222],
      [8000, 6000, 1230],
      [4000, 20, 143],
      [1000, 1000, 1225],
    ],
  ],
] as const

t.test('an image has as many tokens as transformers counts', async (t) => {
  for (const [config, images] of COUNTED) {
    const model = writeVisionModel(t, { image_processor_type: 'Qwen2VLImageProcessorFast', ...config })
    const rule = readImageRule(model.directory, new Map())!
    t.equal(rule.tokenId, model.imageId)
    for (const [width, height, tokens] of images)
      t.equal(rule.countTokens({ width, height }), tokens, `${width} by ${height}`)
    t.equal(rule.countTokens({ width: 33, height: 6601 }), undefined, 'more than 200 to 1')
  }
})

/**
 * `npm run test:differential` compares the counts of 8,000 random images of each family with those of
 * transformers.
 */
const FAMILIES = [
  [
    {
      image_processor_type: 'Gemma4ImageProcessor',
      patch_size: 16,
      pooling_kernel_size: 3,
      max_soft_tokens: 280,
    },
    { image_token_id: 5, boi_token_id: 6, eoi_token_id: 7 },
    [
      [300, 200, 260],
      [64, 500, 230],
      [3, 900, 280],
    ],
  ],
  [
    { image_processor_type: 'Glm4vImageProcessor', size: { shortest_edge: 12_544, longest_edge: 9_633_792 } },
    { image_token_id: 5 },
    [
      [300, 200, 77],
      [64, 500, 36],
    ],
  ],
  [
    {
      media_proc_cfg: {
        patch_size: 14,
        merge_kernel_size: 2,
        in_patch_limit: 16_384,
        patch_limit_on_one_side: 512,
      },
    },
    { model_type: 'kimi_k25', media_placeholder_token_id: 5 },
    [
      [224, 224, 64],
      [1, 1, 1],
      [300, 200, 88],
    ],
  ],
] as const

t.test('images of Gemma 4, GLM and Kimi K2.5 are counted by their own rules', async (t) => {
  for (const [processor, model, images] of FAMILIES) {
    const directory = t.testdir({
      'preprocessor_config.json': JSON.stringify(processor),
      'config.json': JSON.stringify(model),
    })
    const rule = readImageRule(directory, new Map())!
    t.equal(rule.tokenId, 5)
    t.strictSame(rule.edges, 'boi_token_id' in model ? [6, 7] : undefined)
    for (const [width, height, tokens] of images)
      t.equal(
        rule.countTokens({ width, height }),
        tokens,
        `${width} by ${height} of ${JSON.stringify(processor)}`,
      )
  }
  const unknown = [
    [{ image_processor_type: 'Gemma4ImageProcessor' }, { image_token_id: 5 }],
    [{ image_processor_type: 'Glm4vImageProcessor' }, { image_token_id: 5 }],
    [{ media_proc_cfg: { fixed_output_tokens: 64 } }, { model_type: 'kimi_k25', image_token_id: 5 }],
    [{ media_proc_cfg: {} }, { model_type: 'kimi_k3', image_token_id: 5 }],
  ]
  for (const [processor, model] of unknown) {
    const directory = t.testdir({
      'preprocessor_config.json': JSON.stringify(processor),
      'config.json': JSON.stringify(model),
    })
    t.equal(readImageRule(directory, new Map()), undefined, JSON.stringify(processor))
  }
})

t.test('an unknown rule counts nothing', async (t) => {
  const getRule = (processor: object | null) =>
    readImageRule(writeVisionModel(t, processor).directory, new Map([['<|image_pad|>', 7]]))
  t.equal(getRule(null), undefined)
  t.equal(getRule({ image_processor_type: 'PixtralImageProcessor' }), undefined)
  t.equal(getRule({ image_processor_type: 'Qwen2VLImageProcessor', do_resize: false }), undefined)
})

t.test('a template receives a mark for each image, and none of its bytes', async (t) => {
  const model = writeVisionModel(t)
  const rule = readImageRule(model.directory, new Map())
  const message = {
    role: 'user' as const,
    content: [{ type: 'text' as const, text: 'a' }, createImagePart(createPngUrl(56, 56))],
  }
  const { json, images } = toTemplateMessage(message, rule, 3)
  t.strictSame(JSON.parse(json).content, [message.content[0], { type: 'shown_image' }])
  t.match(images, [{ width: 56, height: 56, tokens: 4, mediaType: 'image/png' }])
  t.throws(() => toTemplateMessage(message, undefined, 3), {
    code: 'unsupported',
    param: 'messages.3.content.1',
  })
  const own = { role: 'user', content: [{ type: 'shown_image' }] } as never
  t.throws(() => toTemplateMessage(own, rule, 0), { code: 'unsupported', param: 'messages.0.content.0' })
})

t.test('a placeholder becomes as many as the image has tokens, and one in a text is rejected', async (t) => {
  const rule = { tokenId: 9, countTokens: () => 1 }
  const image = { width: 1, height: 1, sha256: '', mediaType: '', tokens: 3 }
  t.strictSame(withImages([1, 9, 2, 9, 3], [image, { ...image, tokens: 1 }], rule), [1, 9, 9, 9, 2, 9, 3])
  t.strictSame(withImages([1, 9, 2], [image], { ...rule, edges: [7, 8] }), [1, 7, 9, 9, 9, 8, 2])
  t.throws(() => withImages([1, 9, 2, 9], [image], rule), { code: 'invalid_request' })
  t.throws(() => withImages([1, 2], [image], rule), { code: 'invalid_request' })
  t.strictSame(
    withImages([1, 9], [], undefined),
    [1, 9],
    'for a model without images it is an ordinary token',
  )
})

t.test('images are found in ids, and reduced to one placeholder each', async (t) => {
  const images = { tokenId: 9, tokens: [3, 1] }
  const ids = Int32Array.of(1, 9, 9, 9, 2, 9, 3)
  t.strictSame(findImageRuns(ids, images), [
    { offset: 1, length: 3 },
    { offset: 5, length: 1 },
  ])
  t.strictSame([...collapseImages(ids, images)], [1, 9, 2, 9, 3])
  t.throws(() => findImageRuns(ids.subarray(0, 4), images), RangeError)
  const edged = Int32Array.of(1, 7, 9, 9, 9, 8, 7, 9, 8)
  t.strictSame([...collapseImages(edged, images)], [1, 7, 9, 8, 7, 9, 8], 'edges are kept')
  t.strictSame([...collapseImages(edged, images, [7, 8])], [1, 9, 9], 'or left out')
  t.throws(() => collapseImages(ids, images, [7, 8]), RangeError)
})

t.test('the URLs of a conversation are returned in order, in any form', async (t) => {
  const messages = [
    { content: 'text' },
    {
      content: [
        createImagePart('data:a'),
        { type: 'text', text: 'b' },
        { type: 'image_url', image_url: 'data:b' },
      ],
    },
    { content: [createImagePart('data:c')] },
  ]
  t.strictSame(getImageUrls(messages as never), ['data:a', 'data:b', 'data:c'])
  t.strictSame(splitDataUrl('data:image/PNG;charset=x;base64,QQ=='), {
    mediaType: 'image/png',
    base64: 'QQ==',
  })
  t.equal(splitDataUrl('data:text/plain,hello'), undefined)
})
