/** Images beside token ids, in each engine's format. */
import { once } from 'node:events'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { EmbeddedEngine } from '../../src/embedded/engine/embedded-engine.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { createOpenaiClient } from '../../src/proxy/engines/clients/openai/client.ts'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import type { EngineClient } from '../../src/proxy/engines/port/engine-client.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import { collect, fold, noAbort, tokenRequest } from '../conformance/engine-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { startWorkerClient } from '../helpers/relay-rig.ts'
import { readEvents, relayServerFor } from '../helpers/relay-server.ts'
import { openEventStream, type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { startVisionEngine } from '../helpers/vision-engine.ts'
import { createImagePart, createPngUrl, writeVisionModel } from '../helpers/vision-model.ts'

const URLS = [createPngUrl(56, 84), createPngUrl(28, 28)]
const PROMPT = [1, 9, 9, 9, 2, 9, 3]
const IMAGES = { tokenId: 9, tokens: [3, 1] }

function createImageRequest(body: Record<string, unknown> = {}, stream = true): GenerationRequest {
  const messages = URLS.map((url) => ({ role: 'user', content: [createImagePart(url)] }))
  return {
    ...tokenRequest(PROMPT, { model: 'm', max_tokens: 7, ...body, messages }, stream),
    images: IMAGES,
  } as GenerationRequest
}

async function startServer(t: Test, create: (options: { url: string }) => EngineClient, script: Script) {
  const server = await startScriptedServer(script)
  const client = create({ url: server.url })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  return { client, server }
}

const run = async (client: EngineClient, request = createImageRequest()) =>
  fold(await collect(pull(client, request, noAbort)))

/** Responds as SGLang 0.5.23 does: one placeholder per image becomes as many as it counts. */
function respondAsSglang(counts: readonly number[] | undefined): Script {
  return ({ body }, response) => {
    if (body === undefined) return sendJson(response, { object: 'list', data: [] })
    let next = 0
    const ids = body.input_ids.flatMap((id: number) =>
      id === 9 ? new Array(counts?.[next++]).fill(9) : [id],
    )
    const finish = { type: 'stop', matched: 2 }
    const logprobs = [
      [-0.5, 5, null],
      [-0.25, 2, null],
    ]
    const meta_info = {
      finish_reason: finish,
      prompt_tokens: ids.length,
      completion_tokens: 2,
      output_token_logprobs: logprobs,
    }
    sendJson(response, { output_ids: [5, 2], ...(counts && { prompt_token_ids: ids }), meta_info })
  }
}

t.test('SGLang gets one placeholder and the pixels for each image, and reports its prompt', async (t) => {
  const { client, server } = await startServer(t, createSglangClient, respondAsSglang(IMAGES.tokens))
  const completion = await run(client)
  t.match(server.requests[0]?.body, {
    input_ids: [1, 9, 2, 9, 3],
    image_data: URLS,
    return_prompt_token_ids: true,
    sampling_params: { max_new_tokens: 7 },
  })
  t.strictSame([...completion.start!.promptTokenIds!], PROMPT)
  t.equal(findInexactReason(completion), null)
})

t.test(
  'the prompt of an SGLang that counts differently is accepted, and an unreported one makes the turn inexact',
  async (t) => {
    const other = await startServer(t, createSglangClient, respondAsSglang([2, 1]))
    t.strictSame([...(await run(other.client)).start!.promptTokenIds!], [1, 9, 9, 2, 9, 3])
    const silent = await startServer(t, createSglangClient, (request, response) => {
      const withoutIds = { prompt_token_ids: undefined }
      const finish_reason = { type: 'stop', matched: 2 }
      sendJson(response, {
        ...withoutIds,
        output_ids: [5],
        meta_info: {
          finish_reason,
          prompt_tokens: 7,
          completion_tokens: 1,
          output_token_logprobs: [[-1, 5, null]],
        },
      })
      t.ok(request.body.image_data)
    })
    t.match(findInexactReason(await run(silent.client)), /did not report the token ids of the prompt/)
  },
)

/**
 * Responds as vLLM 0.32 and 0.33 do: one placeholder per image becomes as many as it counts, with the edges that it
 * writes.
 */
function respondAsVllm(counts: readonly number[], edges: readonly [number[], number[]] = [[], []]): Script {
  return ({ path, body }, response) => {
    if (path === '/version') return sendJson(response, { version: '0.32.0' })
    if (path === '/v1/completions/render')
      return sendJson(response, [{ sampling_params: { temperature: 0.6, top_k: 20, max_tokens: 99 } }])
    let next = 0
    const prompt_token_ids = body.token_ids.flatMap((id: number) =>
      id === 9 ? [...edges[0], ...new Array(counts[next++]).fill(9), ...edges[1]] : [id],
    )
    const createChoice = (ids: number[], finish_reason: string | null) => {
      const content = ids.map((id) => ({ token_id: id, rank: 1, logprob: -0.5, top_logprobs: [] }))
      return { index: 0, token_ids: ids, logprobs: { content }, finish_reason }
    }
    if (!body.stream) return sendJson(response, { prompt_token_ids, choices: [createChoice([5, 2], 'stop')] })
    const send = openEventStream(response)
    send({ prompt_token_ids, choices: [createChoice([5], null)] })
    send({ choices: [createChoice([2], 'stop')] })
    send('[DONE]')
    response.end()
  }
}

t.test('vLLM reads the images itself, and reports the prompt with expanded placeholders', async (t) => {
  for (const stream of [false, true]) {
    const { client, server } = await startServer(t, createVllmClient, respondAsVllm(IMAGES.tokens))
    const request = createImageRequest({ temperature: 0.5, stop: ['x'], custom: 1 }, stream)
    const completion = await run(client, request)
    const { path, body } = server.requests.at(-1)!
    t.equal(path, '/inference/v1/generate')
    t.strictSame(body, {
      model: 'm',
      token_ids: [1, 9, 2, 9, 3],
      content_parts: URLS.map((url) => ({ type: 'image_url', url })),
      sampling_params: { temperature: 0.5, top_k: 20, stop: ['x'], max_tokens: 7, logprobs: 0 },
      return_token_ids: true,
      stream,
      ...(stream && { stream_options: { include_usage: true } }),
    })
    t.strictSame(completion.tokenIds, [5, 2])
    t.strictSame(completion.logprobs, [-0.5, -0.5])
    t.strictSame([...completion.start!.promptTokenIds!], PROMPT)
    t.equal(findInexactReason(completion), null)
    t.same(completion.start!.sampling, { defaults: { temperature: 0.6, top_k: 20 } })
  }
})

t.test('vLLM gets every sampling parameter beside images that it gets without them', async (t) => {
  const { client, server } = await startServer(t, createVllmClient, respondAsVllm(IMAGES.tokens))
  const sampling = {
    allowed_token_ids: [5, 2],
    thinking_token_budget: 8,
    repetition_detection: { max_pattern_size: 4, min_count: 3 },
    watermarking: false,
  }
  const transfer = { kv_transfer_params: { do_remote_decode: true }, ec_transfer_params: { a: 1 } }
  const body = { ...sampling, ...transfer, vllm_xargs: { b: 2 }, use_beam_search: false, priority: null }
  await run(client, createImageRequest(body))
  const sent = server.requests.at(-1)!.body
  t.match(sent, { sampling_params: { ...sampling, extra_args: { b: 2 } }, ...transfer })
  t.notOk('priority' in sent, 'null means unset')
})

t.test(
  'edges of images are omitted for vLLM, which writes them, and sent to SGLang, which does not',
  async (t) => {
    const prompt = [1, 7, 9, 9, 9, 8, 7, 9, 8, 3]
    const { images: _, ...request } = createImageRequest()
    const edged = {
      ...request,
      promptTokenIds: tokenRequest(prompt, {}, true).promptTokenIds,
      images: { ...IMAGES, edges: [7, 8] },
    } as GenerationRequest
    const vllmServer = await startServer(t, createVllmClient, respondAsVllm(IMAGES.tokens, [[7], [8]]))
    t.strictSame([...(await run(vllmServer.client, edged)).start!.promptTokenIds!], prompt)
    t.strictSame(vllmServer.server.requests.at(-1)?.body.token_ids, [1, 9, 9, 3])
    const sglangServer = await startServer(t, createSglangClient, respondAsSglang(IMAGES.tokens))
    t.strictSame([...(await run(sglangServer.client, edged)).start!.promptTokenIds!], prompt)
    t.strictSame(sglangServer.server.requests.at(-1)?.body.input_ids, [1, 7, 9, 8, 7, 9, 8, 3])
  },
)

t.test('the sampling masks of a vLLM response after images are recorded', async (t) => {
  const { client } = await startServer(t, createVllmClient, (request, response) => {
    if (request.path !== '/inference/v1/generate') return respondAsVllm([])(request, response)
    const content = [5, 2].map((id) => ({ token: `token_id:${id}`, logprob: -0.5, top_logprobs: [] }))
    const choice = { index: 0, token_ids: [5, 2], logprobs: { content }, finish_reason: 'stop' }
    const choices = [{ ...choice, sampling_mask: [[5, 6, 7], [2]] }]
    sendJson(response, { prompt_token_ids: PROMPT, choices })
  })
  const request = { ...createImageRequest({ top_k: 8 }, false), record: { samplingMask: true } }
  const events = await collect(pull(client, request, noAbort))
  const masks = events.flatMap((event) =>
    event.type === 'delta' ? (event.details?.sampling_mask ?? []) : [],
  )
  t.strictSame(masks, [{ counts: [3, 1], ids: [5, 6, 7, 2] }])
})

t.test(
  'a vLLM that would ignore images, and fields that it cannot obey beside them, are rejected',
  async (t) => {
    const schema = { response_format: { type: 'json_object' } }
    for (const [version, body, param] of [
      ['0.31.2', {}, 'messages'],
      ['0.32.0', schema, 'response_format'],
      ['0.32.0', { structured_outputs: { choice: ['a'] } }, 'structured_outputs'],
      ['0.32.0', { guided_regex: 'a' }, 'guided_regex'],
      ['0.32.0', { use_beam_search: true }, 'use_beam_search'],
      ['0.32.0', { logprob_token_ids: [5] }, 'logprob_token_ids'],
    ] as const) {
      const { client, server } = await startServer(t, createVllmClient, (request, response) =>
        request.path === '/version' ? sendJson(response, { version }) : respondAsVllm([])(request, response),
      )
      await t.rejects(run(client, createImageRequest(body)), { code: 'unsupported', param })
      t.notOk(server.requests.some(({ path }) => path === '/inference/v1/generate'))
    }
  },
)

t.test('engines that accept no images are reported', async (t) => {
  const embedded = new EmbeddedEngine()
  t.teardown(() => embedded.close())
  await t.rejects(run(embedded), { code: 'unsupported', message: /does not accept images with token ids/ })
  const openai = await startServer(t, createOpenaiClient, (_, response) => sendJson(response, {}))
  await t.rejects(run(openai.client), { code: 'unsupported' })
})

t.test('a worker whose engines accept images gets them in the messages', async (t) => {
  const engine = await startServer(t, createSglangClient, respondAsSglang(IMAGES.tokens))
  const { url, backend } = await relayServerFor(t)
  const local = createLocalBackend({ clients: [engine.client] })
  t.teardown(() => local.close())
  await local.listModels()
  await once(startWorkerClient(t, url, 'w', local), 'connected')
  const [start] = await readEvents(backend, createImageRequest())
  t.match(engine.server.requests.at(-1)?.body, { input_ids: [1, 9, 2, 9, 3], image_data: URLS })
  t.strictSame(start?.type === 'start' && [...start.promptTokenIds!], PROMPT)
})

t.test('a worker without image support never gets a request with images', async (t) => {
  const { url, backend } = await relayServerFor(t)
  await RawWorker.hello(url, { capabilities: ['resume', 'token_ids'] })
  await t.rejects(readEvents(backend, createImageRequest()), {
    code: 'unsupported',
    message: /no worker accepts images/,
  })
})

t.test('images of a session are returned with its rows, once each', async (t) => {
  const { directory, imageId } = writeVisionModel(t)
  const engine = await startVisionEngine(t, imageId, [6, 6, 4])
  const config = { tokenizer: directory, engineUrls: [engine.url], engineKind: 'sglang' as const }
  const proxy = await startProxy(t, { ...config, db: join(directory, 'proxy.db') })
  const createMessage = (url: string) => ({ role: 'user', content: [createImagePart(url)] })
  const messages = [createMessage(URLS[0]!), createMessage(URLS[0]!), createMessage(URLS[1]!)]
  for (const length of [1, 3]) {
    const response = await proxy.post('/s/v1/chat/completions', { messages: messages.slice(0, length) })
    t.ok(response.choices, JSON.stringify(response))
  }
  const { trajectories, images } = await proxy.get('/sessions/s/trajectories?images=true')
  t.strictSame(Object.values(images), URLS)
  const [first, second] = trajectories.map((row: { images: { sha256: string }[] }) =>
    row.images.map(({ sha256 }) => images[sha256]),
  )
  t.strictSame([first, second], [[URLS[0]], [URLS[0], URLS[0], URLS[1]]])
  t.notOk('images' in (await proxy.get('/sessions/s/trajectories')))
})
