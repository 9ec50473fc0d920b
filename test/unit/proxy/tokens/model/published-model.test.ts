import t from 'tap'
import { openTokenModel } from '../../../../../src/proxy/tokens/model/token-model.ts'
import { createKimiConfigFiles } from '../../../../helpers/kimi-files.ts'

const BYTES = Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]).toString('base64'))
const HELLO = [...Buffer.from('Hello.')]
const MESSAGES = [{ role: 'user', content: 'Hello.' }] as const

t.test('token mode opens a folder with a tiktoken.model and a template', async (t) => {
  const source = t.testdir({
    'tiktoken.model': BYTES.map((byte, rank) => `${byte} ${rank}\n`).join(''),
    ...createKimiConfigFiles(BYTES.length),
    'chat_template.jinja':
      '{% for m in messages %}<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}' +
      '{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}',
  })
  const model = await openTokenModel({ source, parser: 'plain' })
  t.teardown(() => model.close())
  const { ids } = await model.renderer.renderFull(MESSAGES)
  const [user, middle, end, assistant] = [259, 273, 258, 260]
  const roles = ['user', 'assistant'].map((role) => [...Buffer.from(role)])
  t.same(Array.from(ids), [user, ...roles[0]!, middle, ...HELLO, end, assistant, ...roles[1]!, middle])
  t.same(model.eosTokenIds, [257])
  t.equal(model.vocabularySize, 256 + 256)
})

t.test(
  'token mode opens a folder with a tekken.json and a template, which may name the begin of text',
  async (t) => {
    const config = {
      pattern: '[\\s\\S]',
      default_vocab_size: 276,
      default_num_special_tokens: 20,
      version: 'v3',
    }
    const vocab = BYTES.map((token_bytes, rank) => ({ rank, token_bytes, token_str: null }))
    const template =
      '{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}{# #}' +
      '{% if not add_generation_prompt %}{{ eos_token }}{% endif %}'
    const files = { 'tekken.json': JSON.stringify({ config, vocab }) }
    const folder = t.testdir({ templated: { ...files, 'chat_template.jinja': template }, untemplated: files })
    const model = await openTokenModel({ source: `${folder}/templated`, parser: 'plain' })
    t.teardown(() => model.close())
    const { ids } = await model.renderer.renderFull(MESSAGES)
    t.same(Array.from(ids), [1, 3, ...HELLO.map((byte) => byte + 20), 4])
    t.same(model.eosTokenIds, [2])
    const untemplated = await openTokenModel({ source: `${folder}/untemplated`, parser: 'plain' })
    t.teardown(() => untemplated.close())
    const prompt = await untemplated.renderer.renderFull([{ role: 'user', content: 'Hello.</s>' }])
    const text = [...Buffer.from('Hello.</s>')].map((byte) => byte + 20)
    t.same(Array.from(prompt.ids), [1, 3, ...text, 4], "mistral-common's rules, without a template")
  },
)

t.test('a folder with neither a template nor an encoder is rejected', async (t) => {
  const tokens = BYTES.map((byte, rank) => `${byte} ${rank}\n`).join('')
  const source = t.testdir({ 'tiktoken.model': tokens, ...createKimiConfigFiles(BYTES.length) })
  await t.rejects(openTokenModel({ source, parser: 'plain' }), {
    code: 'config_invalid',
    message: /no chat template and no prompt encoder/,
  })
})
