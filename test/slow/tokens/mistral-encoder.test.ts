/** Models with a `tekken.json` and no chat template: their prompts are mistral-common's, which the fixture contains. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { ChatMessage } from '../../../src/protocol/canonical/messages.ts'
import { openTokenModel } from '../../../src/proxy/tokens/model/token-model.ts'

interface Fixture {
  tokens: string[]
  effort: object
  /** JSON text. */
  tools: string
  chats: { messages: ChatMessage[]; hasTools: boolean }[]
  /** By version: ids, or why the chat is rejected. */
  prompts: Record<string, (number[] | string)[]>
}

const FIXTURE = join(import.meta.dirname, '../../unit/proxy/tokens/fixtures/mistral-prompts.json')
const { tokens, effort, tools, chats, prompts } = JSON.parse(readFileSync(FIXTURE, 'utf8')) as Fixture

/** A vocabulary of bytes, as in `make_mistral_prompts.py`. */
function tekken(version: string | number, special = tokens) {
  const vocab = Array.from({ length: 256 }, (_, rank) => ({
    rank,
    token_bytes: Buffer.from([rank]).toString('base64'),
  }))
  const config = {
    pattern: '[\\s\\S]',
    default_vocab_size: 256 + special.length,
    default_num_special_tokens: special.length,
    version: `v${version}`,
  }
  const special_tokens = special.map((token_str, rank) => ({ rank, token_str }))
  const settings = Number(version) >= 15 && { model_settings_builder: { reasoning_effort: effort } }
  return { 'tekken.json': JSON.stringify({ config, vocab, special_tokens, ...settings }) }
}

async function open(t: Test, files: Parameters<Test['testdir']>[0], promptEncoder?: string) {
  const model = await openTokenModel({ source: t.testdir(files), parser: 'auto', promptEncoder })
  t.teardown(() => model.close())
  return model
}

for (const [version, expected] of Object.entries(prompts)) {
  t.test(`version ${version} of tekken.json`, async (t) => {
    const model = await open(t, tekken(version))
    t.match(model.promptFormat, { name: 'encoder', chosenBy: 'files', evidence: ['tekken.json'] })
    t.match(model.promptEncoder, { file: 'tekken.json', sha256: /^[0-9a-f]{64}$/ })
    t.equal(model.parser.name, 'mistral')
    t.same(
      ['none', 'high', 'low'].filter((each) => model.efforts?.rejected.has(each)),
      version === '15' ? ['low'] : [],
    )
    for (const [index, { messages, hasTools }] of chats.entries()) {
      const options = { tools: hasTools ? tools : null }
      const chat = JSON.stringify(messages)
      const ids = await model.renderer.renderFull(messages, options).then(
        (prompt) => [...prompt.ids],
        (error: Error) => error.message,
      )
      const expectedPrompt = expected[index]!
      // System messages after the first of another role are rendered as a user's: mistral-common rejects most of them.
      if (messages.slice(1).some(({ role }, at) => role === 'system' && messages[at]!.role !== 'system'))
        t.type(ids, Array, chat)
      else if (typeof expectedPrompt === 'string') t.match(ids, expectedPrompt.replace(/^\w+: /, ''), chat)
      else t.same(ids, expectedPrompt, chat)
    }
  })
}

t.test('the new part of a conversation is the end of the complete prompt', async (t) => {
  const { renderer } = await open(t, tekken(13))
  const [index, { messages }] = [3, chats[3]!]
  const at = messages.findIndex(({ role }) => role === 'tool')
  const request = { history: messages.slice(0, at), newMessages: messages.slice(at), lastCompletionId: 2 }
  const part = await renderer.renderContinuation(request, { tools })
  if ('refused' in part) throw new Error(part.refused)
  t.same([...part.newIds], (prompts[13]![index] as number[]).slice(-part.newIds.length))
  t.equal(part.newIds[0], tokens.indexOf('[TOOL_RESULTS]'))
})

t.test('a chat template precedes the rules of tekken.json, unless tekken.json is named', async (t) => {
  const files = { ...tekken(7), 'chat_template.jinja': '{{ messages[0].content }}' }
  const byTemplate = await open(t, files)
  t.equal(byTemplate.promptFormat.name, 'template')
  const named = await open(t, files, 'tekken.json')
  t.match(named.promptFormat, { name: 'encoder', chosenBy: 'name' })
})

t.test('a file whose rules are unknown is rejected', async (t) => {
  const start = (files: Parameters<Test['testdir']>[0], more = {}) =>
    openTokenModel({ source: t.testdir(files), parser: 'auto', ...more })
  await t.rejects(start(tekken(14)), { code: 'config_invalid', message: /version v14 are unknown/ })
  const few = tokens.filter((token) => token !== '[ARGS]')
  await t.rejects(start(tekken(11, few)), { code: 'config_invalid', message: /no token \[ARGS\]/ })
  await t.rejects(start(tekken(11), { trustModelCode: '0'.repeat(64) }), {
    code: 'config_invalid',
    message: /omit --trust-model-code/,
  })
})
