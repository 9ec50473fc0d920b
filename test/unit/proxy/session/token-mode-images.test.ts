/** Images in token mode: the engine's request, and how later prompts continue from it. */
import t, { type Test } from 'tap'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../../src/protocol/canonical/request.ts'
import {
  TrajectoryBuilder,
  type TrajectoryOptions,
} from '../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import { openTokenModel, type TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { createTokenModeRig } from '../../../helpers/token-mode-rig.ts'
import {
  createImagePart,
  createPngUrl,
  TEMPLATE_BLIND_TO_TOOLS,
  writeVisionModel,
} from '../../../helpers/vision-model.ts'

/** Starts an engine that responds with `I see.` to every request. */
async function setUp(t: Test, model: TokenModel, store?: TurnStore) {
  const requests: GenerationRequest[] = []
  const respond = (request: GenerationRequest) => {
    requests.push(request)
    return { text: 'I see.' }
  }
  return { requests, ...(await createTokenModeRig(t, model, respond, store)) }
}

function getPrompt({ annotations }: TurnRecord): { reason: string; images: [{ at: number }] } {
  return JSON.parse(annotations).prompt
}

const picture = (width: number, height: number, text = 'What is it?'): ChatMessage => ({
  role: 'user',
  content: [createImagePart(createPngUrl(width, height)), { type: 'text', text }],
})
const seen: ChatMessage = { role: 'assistant', content: 'I see.' }

async function openVision(t: Test, processor?: object | null, template?: string) {
  const { directory, imageId } = writeVisionModel(t, processor, template)
  const model = await openTokenModel({ source: directory, parser: 'auto' })
  t.teardown(() => model.close())
  return { model, imageId }
}

const { model, imageId } = await openVision(t)

t.test('a prompt has the tokens of its images, and later ones continue from them', async (t) => {
  const { sendRequest, requests, store } = await setUp(t, model)
  const pads = (count: number) => '<|image_pad|>'.repeat(count)
  const first = await sendRequest([picture(56, 84)])
  t.equal(
    model.tokenizer.decode(first.promptTokenIds),
    `<|im_start|>user\n<|vision_start|>${pads(6)}<|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\n`,
  )
  t.strictSame(requests[0]?.images, { tokenId: imageId, edges: undefined, tokens: [6] })
  const messages = [picture(56, 84), seen, picture(112, 112, 'And this?')]
  const second = await sendRequest(messages)
  t.match(getPrompt(second), {
    reason: 'extended',
    images: [{ width: 112, height: 112, tokens: 16, media_type: 'image/png', sha256: /^[0-9a-f]{64}$/ }],
  })
  t.strictSame(requests[1]?.images, { tokenId: imageId, edges: undefined, tokens: [6, 16] })
  const recorded = [...first.promptTokenIds, ...first.completionTokenIds]
  t.strictSame([...second.promptTokenIds.slice(0, recorded.length)], recorded)
  const {
    images: [image],
  } = getPrompt(second)
  t.strictSame([...second.promptTokenIds.slice(image.at, image.at + 16)], new Array(16).fill(imageId))
  t.not(second.promptTokenIds[image.at - 1], imageId)
  // A process that has the session's turns in the store only.
  const later = await setUp(t, model, store)
  const third = await later.sendRequest([...messages, seen, { role: 'user', content: 'Sure?' }])
  t.match(getPrompt(third), { reason: 'extended', images: undefined })
  t.strictSame(later.requests[0]?.images, { tokenId: imageId, edges: undefined, tokens: [6, 16] })
})

t.test(
  'an extended prompt equals the complete one, with any number and numbering of earlier images',
  async (t) => {
    for (const chat_template_kwargs of [{}, { add_vision_id: true }]) {
      const { sendRequest } = await setUp(t, model)
      const messages: ChatMessage[] = []
      for (let index = 0; index < 6; index += 1) {
        messages.push(index % 3 === 2 ? { role: 'user', content: 'Go on.' } : picture(28 * (index + 2), 56))
        const turn = await sendRequest(messages, { chat_template_kwargs })
        const complete = await (await setUp(t, model)).sendRequest(messages, { chat_template_kwargs })
        t.strictSame([...turn.promptTokenIds], [...complete.promptTokenIds])
        t.match(getPrompt(turn), { reason: index === 0 ? 'first' : 'extended' })
        messages.push(seen)
      }
    }
  },
)

t.test('another image is another message', async (t) => {
  const { sendRequest } = await setUp(t, model)
  await sendRequest([picture(56, 56)])
  const other = await sendRequest([picture(56, 57), seen, { role: 'user', content: 'Sure?' }])
  t.match(getPrompt(other), { reason: 'branched', images: [{ height: 57 }] })
})

t.test('images that cannot become tokens are rejected, as is their placeholder in a text', async (t) => {
  const { sendRequest } = await setUp(t, model)
  const spelt: ChatMessage = { role: 'user', content: 'Say <|image_pad|>.' }
  await t.rejects(sendRequest([spelt]), { code: 'invalid_request' })
  const remote: ChatMessage = { role: 'user', content: [createImagePart('https://example.org/a.png')] }
  await t.rejects(sendRequest([remote]), { code: 'unsupported', param: 'messages.0.content.0' })
  await t.rejects(sendRequest([picture(10, 4000)]), { code: 'invalid_request' })
  const { model: blind } = await openVision(t, null)
  await t.rejects((await setUp(t, blind)).sendRequest([picture(56, 56)]), {
    code: 'unsupported',
    message: /images are not supported for this model in token mode/,
  })
})

t.test('a row lists its images, and no cut divides one', async (t) => {
  const { sendRequest, store } = await setUp(t, model)
  const messages = [
    picture(56, 84),
    seen,
    picture(112, 112),
    seen,
    { role: 'user', content: 'Sure?' },
  ] as const
  for (const length of [1, 3, 5]) await sendRequest(messages.slice(0, length))
  await sendRequest([picture(28, 28)])
  const builder = new TrajectoryBuilder()
  for await (const turn of store.readSteps('s')) builder.add(turn)
  const getRows = (options: TrajectoryOptions) =>
    [...builder.assembleRows(options, null)].map(({ prompt_ids, response_ids, images, response_mask }) => {
      const ids = [...prompt_ids, ...response_ids]
      for (const { at: index, tokens } of images ?? [])
        t.strictSame(ids.slice(index, index + tokens), new Array(tokens).fill(imageId))
      const placeholders = ids.filter((id) => id === imageId).length
      t.equal(
        placeholders,
        images?.reduce((sum, { tokens }) => sum + tokens, 0),
        'all of them are images',
      )
      t.equal(response_mask.length, response_ids.length)
      return { images: images?.map(({ tokens }) => tokens), length: ids.length, begin: prompt_ids.length }
    })
  const [complete, other] = getRows({})
  t.match([complete?.images, other?.images], [[6, 16], [4]])
  for (let responseLength = 1; responseLength < complete!.length - complete!.begin; responseLength += 1)
    t.ok(getRows({ responseLength })[0]!.length - complete!.begin <= responseLength)
  for (let promptLength = 1; promptLength < complete!.begin; promptLength += 1)
    t.ok(getRows({ promptLength })[0]!.begin <= promptLength)
  t.strictSame(
    getRows({ perTurn: true }).map(({ images }) => images),
    [[6], [6, 16], [6, 16], [4]],
  )
})

t.test(
  'an image in a tool result is included where the template renders it, and replaced by a text elsewhere',
  async (t) => {
    const returned = (url: string): ChatMessage[] => [
      { role: 'user', content: 'Look.' },
      { role: 'assistant', content: 'I see.' },
      { role: 'tool', tool_call_id: 'call_1', content: [createImagePart(url)] } as never,
    ]
    t.equal(model.seesToolImages, true)
    const shown = await setUp(t, model)
    await shown.sendRequest(returned(createPngUrl(56, 84)))
    t.match(shown.requests[0]?.images, { tokens: [6] })
    for (const [template, own] of [
      [TEMPLATE_BLIND_TO_TOOLS, { tokens: [6] }],
      // A template that rejects everything but text in a tool's result.
      [
        `{%- for m in messages if m.role == 'tool' and m.content is not string %}{{ 1 / 0 }}{% endfor %}x`,
        undefined,
      ],
    ] as const) {
      const { model: blind } = await openVision(t, undefined, template)
      t.equal(blind.seesToolImages, false)
      const { sendRequest, requests } = await setUp(t, blind)
      const turn = await sendRequest(returned(createPngUrl(56, 84)))
      t.equal(requests[0]?.images, undefined)
      if (own === undefined) continue
      t.match(blind.tokenizer.decode(turn.promptTokenIds), /cannot see images that tools return/)
      await sendRequest([picture(56, 84)])
      t.match(requests[1]?.images, own, 'those of a user are included')
    }
  },
)
