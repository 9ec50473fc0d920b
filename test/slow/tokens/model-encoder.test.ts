/** A model with a prompt encoder in place of a chat template, served as its authors publish it. */
import { hash } from 'node:crypto'
import { cpSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../../src/embedded/engine/embedded-model.ts'
import type { ServeConfig } from '../../../src/proxy/config/options/serve.ts'
import { startEngine } from '../../helpers/engine.ts'
import { createListingLogger } from '../../helpers/listing-logger.ts'
import { runLlmProxy } from '../../helpers/llm-proxy.ts'
import { startProxy } from '../../helpers/proxy.ts'

/** Renders ChatML, as the embedded engine's model does; an effort is written into the first message. */
const ENCODER = `
import json
import re


def render_message(message):
    content = message.get("content") or ""
    for tool in message.get("tools") or []:
        content += "\\n" + json.dumps(tool["function"], ensure_ascii=False)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        content += '<tool_call>\\n{"name": ' + json.dumps(function["name"]) + ', "arguments": '
        content += function["arguments"] + "}\\n</tool_call>"
    return "<|im_start|>" + message["role"] + "\\n" + content + "<|im_end|>\\n"


def encode_messages(messages, thinking_mode, reasoning_effort=None):
    if reasoning_effort not in (None, "low", "high"):
        raise ValueError(f"no such effort: {reasoning_effort}")
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
    effort = f"Effort: {reasoning_effort}\\n" if reasoning_effort else ""
    return effort + "".join(map(render_message, messages)) + "<|im_start|>assistant\\n"
`
const SHA256 = hash('sha256', ENCODER)
const FILE = 'encoding/encoding_chatml.py'

/** Creates the embedded engine's model without its chat template. */
function publish(t: Test): string {
  const folder = getEmbeddedModelFolder()
  const { chat_template: _, ...config } = JSON.parse(
    readFileSync(join(folder, 'tokenizer_config.json'), 'utf8'),
  ) as Record<string, unknown>
  const directory = t.testdir({
    'tokenizer_config.json': JSON.stringify(config),
    encoding: { 'encoding_chatml.py': ENCODER },
  })
  cpSync(join(folder, 'tokenizer.json'), join(directory, 'tokenizer.json'))
  return directory
}

async function serve(t: Test, overrides: Partial<ServeConfig>) {
  const engine = await startEngine(t)
  const { logger, lines } = createListingLogger()
  const proxy = await startProxy(t, { engineUrls: [engine.url], db: 'memory', ...overrides }, logger)
  return { proxy, lines }
}

const TOOL = {
  type: 'function',
  function: { name: 'calculator', parameters: { type: 'object', properties: { expression: {} } } },
}

t.test('the encoder writes the prompts of a session, each of which extends the previous one', async (t) => {
  const tokenizer = publish(t)
  const { proxy, lines } = await serve(t, { tokenizer, trustModelCode: SHA256 })
  const messages: object[] = [{ role: 'user', content: 'Compute 2 + 2.' }]
  for (const question of ['And 3 + 3?', 'Why?', 'Thanks.']) {
    const body = { model: 'embedded', messages, tools: [TOOL], max_tokens: 30 }
    const { choices } = await proxy.post('/s/v1/chat/completions', body)
    messages.push(choices[0].message)
    for (const { id } of choices[0].message.tool_calls ?? [])
      messages.push({ role: 'tool', tool_call_id: id, content: '4' })
    messages.push({ role: 'user', content: question })
  }
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns.length, 3)
  for (const [index, { annotations, prompt_token_ids: ids }] of turns.entries()) {
    t.same(annotations.prompt_encoder, { file: FILE, sha256: SHA256 })
    if (index === 0) continue
    const { prompt_token_ids: prompt, completion_token_ids: completion } = turns[index - 1]
    t.equal(annotations.prompt.reason, 'extended')
    t.same(ids.slice(0, prompt.length + completion.length), [...prompt, ...completion])
  }
  const expected = { name: 'encoder', chosen_by: 'files', encoder: { file: FILE, sha256: SHA256 } }
  t.match((await proxy.get('/health')).prompt_format, expected)
  t.match(
    lines.find(({ event }) => event === 'prompt_format_chosen'),
    { prompt_format: expected },
  )
})

t.test('efforts that the encoder rejects become the nearest accepted ones', async (t) => {
  const { proxy } = await serve(t, { tokenizer: publish(t), trustModelCode: SHA256 })
  const body = { model: 'embedded', messages: [{ role: 'user', content: 'Hello.' }], max_tokens: 5 }
  await proxy.post('/s/v1/chat/completions', { ...body, reasoning_effort: 'xhigh' })
  const [turn] = (await proxy.get('/sessions/s')).turns
  t.match(turn.annotations.reasoning_effort, { requested: 'xhigh', sent: 'high' })
})

t.test('without trust the proxy does not start, and doctor prints a remedy', async (t) => {
  const tokenizer = publish(t)
  const message = `${tokenizer} needs code of its authors to render prompts, ${FILE}, which runs only if you trust it: read it, then add --trust-model-code ${SHA256}`
  await t.rejects(serve(t, { tokenizer }), { code: 'config_invalid', message })
  const { url } = await startEngine(t)
  const model = ['--engine-url', url, '--tokenizer', tokenizer, '--db', join(tokenizer, 'turns.db')]
  const doctor = async (...words: string[]) => {
    const { stdout } = await runLlmProxy(['doctor', '--json', '--port', '0', ...model, ...words])
    return JSON.parse(stdout) as { about: string; state: string; seen: string }[]
  }
  const options = { about: 'options', state: 'failure', seen: message }
  t.match((await doctor()).at(-1), options)
  const trusted = await doctor('--trust-model-code', SHA256)
  t.match(
    trusted.find(({ about }) => about === 'prompt encoder'),
    { state: 'ok', seen: `${FILE} writes the prompts, SHA-256 ${SHA256}` },
  )
  t.same(
    trusted.filter(({ state }) => state === 'failure'),
    [],
  )
})
