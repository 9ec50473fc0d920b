/**
 * Prompts for a model that Mistral publishes with `tekken.json`: token mode renders the same ids as vLLM with
 * `--tokenizer-mode mistral`. vLLM's render server needs no weights.
 *
 *     FULL=1 npm run test:vllm -- --grep=/Mistral/   # PROPERTY_SEED=7 repeats the conversations of a seed
 */
import { globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { ChatMessage } from '../../src/protocol/canonical/messages.ts'
import { openTokenModel } from '../../src/proxy/tokens/model/token-model.ts'
import { createConversation, createRandom } from '../differential/conversations.ts'
import { freePort } from '../helpers/free-port.ts'
import { createTekkenFile, RELEASED_TEKKEN } from '../helpers/tekken-file.ts'
import { ONLY_FULL } from '../helpers/tier.ts'
import { getJson } from './parts/check-session.ts'
import { EngineProcess } from './parts/engine-process.ts'
import { installOrSkip } from './parts/install-or-skip.ts'
import { startProxy } from './parts/proxies.ts'
import { installVllm, NEWEST, VLLM_VERSION, type VllmInstalled } from './vllm/install.ts'
import { CPU_ENVIRONMENT } from './vllm/vllm.ts'

const CONTEXT_LENGTH = 32_768
const CONFIG = {
  architectures: ['MistralForCausalLM'],
  model_type: 'mistral',
  hidden_size: 64,
  intermediate_size: 128,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 32,
  vocab_size: 131_072,
  max_position_embeddings: CONTEXT_LENGTH,
}
const CONVERSATIONS = 30
const SEED = Number(process.env.PROPERTY_SEED ?? Math.floor(Math.random() * 1_000_000))

/** Older versions reject earlier reasoning, which the proxy omits. */
const VERSION = 13

const skip = VLLM_VERSION === NEWEST ? ONLY_FULL : 'requires the newest release'
await t.test("prompts of a Mistral model are vLLM's", { skip }, async (t) => {
  const vllm = await installOrSkip(t, installVllm)
  if (vllm !== undefined) await checkPrompts(t, vllm)
})

async function checkPrompts(t: Test, { venv }: VllmInstalled): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'vllm-mistral-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const [released] = globSync(`lib/python*/site-packages/${RELEASED_TEKKEN}`, { cwd: venv })
  const tekken = createTekkenFile(readFileSync(join(venv, released!), 'utf8'), VERSION)
  writeFileSync(join(folder, 'tekken.json'), tekken)
  writeFileSync(join(folder, 'config.json'), JSON.stringify(CONFIG))
  const mode = ['--tokenizer-mode', 'mistral', '--served-model-name', 'mistral']
  const server = new EngineProcess({
    folder,
    port: await freePort(),
    command: join(venv, 'bin/vllm'),
    args: ['launch', 'render', folder, ...mode],
    env: CPU_ENVIRONMENT,
  })
  t.teardown(() => server.kill())
  await server.start()
  const model = await openTokenModel({ source: folder, parser: 'auto' })
  t.teardown(() => model.close())
  const random = createRandom(SEED)
  let prompts = 0
  const compare = async (messages: readonly ChatMessage[], tools: string | null) => {
    // The tools are inserted as text, because JavaScript cannot represent some of their numbers.
    const body = `${JSON.stringify({ model: 'mistral', messages }).slice(0, -1)},"tools":${tools}}`
    const expected = await render(server.url, body)
    const { ids } = await model.renderer.renderFull(messages, { tools })
    prompts += 1
    if (String(expected) !== String([...ids])) t.same([...ids], expected, `seed ${SEED}: ${body}`)
  }
  for (let number = 0; number < CONVERSATIONS; number += 1) {
    const { opening, tools, rounds } = createConversation(random, { withTools: true })
    let messages = opening
    await compare(messages, tools)
    for (const { assistantMessage, next } of rounds) {
      messages = [...messages, assistantMessage, ...next]
      await compare(messages, tools)
    }
  }
  t.ok(prompts > CONVERSATIONS, `${prompts} prompts`)
  // The proxy compares prompts at its start.
  const flags = ['--db', 'memory', '--tokenizer', folder, '--context-length', String(CONTEXT_LENGTH)]
  const url = await startProxy(t, ['--engine-url', server.url, ...flags])
  const { engines } = await getJson(`${url}/health`)
  t.match(engines, [{ healthy: true }])
  t.equal(engines[0].warning, undefined)
}

async function render(url: string, body: string): Promise<number[]> {
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${url}/v1/chat/completions/render`, { method: 'POST', headers, body })
  const { token_ids: ids } = (await response.json()) as { token_ids?: number[] }
  if (ids === undefined) throw new Error(`vLLM rejects ${body}`)
  return ids
}
