/**
 * Released vLLM with models that see images: recorded turns with images equal the requests and samples of the engine's
 * core, and their prompts equal those that vLLM's chat route renders from the same messages.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { crc32, deflateSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { freePort } from '../helpers/free-port.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { createImagePart } from '../helpers/vision-model.ts'
import { getJson } from './parts/check-session.ts'
import type { EngineProcess } from './parts/engine-process.ts'
import { installOrSkip } from './parts/install-or-skip.ts'
import { type Mode, startTokenModes } from './parts/proxies.ts'
import { installVllm, NEWEST, VLLM_VERSION } from './vllm/install.ts'
import { FAMILIES, installVision } from './vllm/vision.ts'
import { CONTEXT_LENGTH, createVllmProcess } from './vllm/vllm.ts'

/** Sizes of the images in the first and the second message: usual, narrow, large, and smaller than a token. */
const SIZES = [
  [
    [300, 200],
    [64, 500],
  ],
  [
    [5, 900],
    [1_000, 700],
  ],
  [
    [31, 77],
    [640, 480],
  ],
] as const
const FLAGS = ['--limit-mm-per-prompt', '{"image": 4, "video": 0, "audio": 0}', '--skip-mm-profiling']

async function install(note: (text: string) => void) {
  const vllm = await installVllm(note)
  return { vllm, vision: await installVision(vllm) }
}

const all = VLLM_VERSION === NEWEST ? await installOrSkip(t, install) : undefined
if (all === undefined && VLLM_VERSION !== NEWEST) t.plan(0, 'images need the newest release')
if (all !== undefined) {
  const { vllm, vision } = all
  // `npm run test:differential` compares the sizes of images in tokens with each family's own processor, too.
  for (const family of IS_FULL ? FAMILIES : FAMILIES.slice(0, 1))
    await t.test(`${family}: recorded prompts with images equal those of the core`, async (t) => {
      const folder = mkdtempSync(join(tmpdir(), 'vllm-images-'))
      t.teardown(() => rmSync(folder, { recursive: true, force: true }))
      const model = vision.models[family]
      const models = { ...vllm.models, base: model }
      const engine = createVllmProcess({ ...vllm, models }, folder, await freePort(), vision.packages)
      t.teardown(() => engine.kill())
      await engine.start(FLAGS)
      const modes = await startTokenModes(
        t,
        { url: engine.url, model, contextLength: CONTEXT_LENGTH },
        folder,
      )
      for (const mode of modes)
        for (const [number, sizes] of SIZES.entries()) await checkImages(t, engine, mode, `s${number}`, sizes)
    })
}

async function checkImages(
  t: Test,
  engine: EngineProcess,
  { name, url }: Mode,
  session: string,
  sizes: readonly (readonly [number, number])[],
): Promise<void> {
  const { data } = await getJson(`${engine.url}/v1/models`)
  const messages: object[] = []
  for (const [turn, [width, height]] of sizes.entries()) {
    const content = [createImagePart(createPng(width, height)), { type: 'text', text: 'What is it?' }]
    messages.push({ role: 'user', content })
    const body = { model: data[0].id, messages: [...messages], max_tokens: 6, stream: false }
    const response = await postJson(`${url}/${session}/v1/chat/completions`, body)
    messages.push({ role: 'assistant', content: response.choices[0].message.content ?? '' })
    const { turns } = await getJson(`${url}/sessions/${session}`)
    const { exact, prompt_token_ids: prompt, completion_token_ids: ids, completion_logprobs } = turns[turn]
    const what = `${name}, ${session}, turn ${turn}`
    t.ok(exact, what)
    const sampled = engine.core.find(prompt, ids)
    t.strictSame(sampled?.ids, ids, `${what}: sampled after this prompt`)
    t.equal(completion_logprobs.length, ids.length)
    if (turn > 0) continue
    const own = { ...body, max_tokens: 1, return_token_ids: true }
    const { prompt_token_ids: expected } = await postJson(`${engine.url}/v1/chat/completions`, own)
    t.strictSame(prompt, expected, `${what}: the prompt that vLLM renders`)
  }
  const { trajectories: rows } = await getJson(`${url}/sessions/${session}/trajectories`)
  t.equal(rows.length, 1, 'the second turn continues the first')
}

// biome-ignore lint/suspicious/noExplicitAny: the test reads responses as clients do
async function postJson(url: string, body: object): Promise<any> {
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`)
  return response.json()
}

/** Creates a valid picture whose color depends on its width. */
function createPng(width: number, height: number): string {
  const head = Buffer.alloc(13)
  head.writeUInt32BE(width, 0)
  head.writeUInt32BE(height, 4)
  head.set([8, 2], 8)
  const row = Buffer.alloc(1 + 3 * width, width % 251)
  row[0] = 0
  const data = deflateSync(Buffer.concat(Array.from({ length: height }, () => row)))
  const chunk = (type: string, bytes: Buffer) => {
    const named = Buffer.concat([Buffer.from(type), bytes])
    const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)]
    length.writeUInt32BE(bytes.length)
    sum.writeUInt32BE(crc32(named))
    return Buffer.concat([length, named, sum])
  }
  const chunks = [chunk('IHDR', head), chunk('IDAT', data), chunk('IEND', Buffer.alloc(0))]
  const png = Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), ...chunks])
  return `data:image/png;base64,${png.toString('base64')}`
}
