/** A start in token mode that cannot succeed reports the reason in one line, and ends. */
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'

/** Creates a model folder: the embedded model's files with these replaced or added; null removes one. */
function createModel(folder: string, files: Record<string, string | null>): string {
  cpSync(getEmbeddedModelFolder(), folder, { recursive: true })
  for (const [name, content] of Object.entries(files)) {
    if (content === null) rmSync(join(folder, name), { force: true })
    else writeFileSync(join(folder, name), content)
  }
  return folder
}

function configWithout(field: string): string {
  const config = JSON.parse(readFileSync(join(getEmbeddedModelFolder(), 'tokenizer_config.json'), 'utf8'))
  return JSON.stringify({ ...config, [field]: undefined })
}

const WRONG: Record<string, { files: Record<string, string | null>; message: RegExp }> = {
  'no tokenizer.json': {
    files: { 'tokenizer.json': null },
    message:
      /is neither a tokenizer \(tokenizer\.json, tiktoken\.model, tekken\.json\) nor a directory that contains one\n$/,
  },
  'a broken tokenizer.json': {
    files: { 'tokenizer.json': '{"added_tokens":' },
    message: /cannot read .*tokenizer\.json: /,
  },
  'no chat template': {
    files: { 'chat_template.jinja': null, 'tokenizer_config.json': configWithout('chat_template') },
    message: /has no chat template and no prompt encoder; token mode needs one of them to render prompts\n$/,
  },
}

for (const [name, { files, message }] of Object.entries(WRONG)) {
  t.test(`a model with ${name} ends the start before a database is created`, async (t) => {
    const folder = createModel(t.testdir(), files)
    const args = ['serve', '--port', '0', '--db', 'turns.db', '--tokenizer', folder]
    const { code, stderr } = await runLlmProxy(args, { cwd: folder })
    t.match(stderr, message)
    t.equal(stderr.trim().split('\n').length, 1, 'in one line')
    t.equal(code, 2)
    t.notOk(existsSync(join(folder, 'turns.db')))
  })
}

t.test('an invalid Jinja chat template ends the start with the reason', async (t) => {
  const folder = createModel(t.testdir(), {
    'chat_template.jinja': '{% for message in messages %}{{ message',
  })
  const { code, stderr } = await runLlmProxy(
    ['serve', '--port', '0', '--db', 'memory', '--tokenizer', folder],
    { cwd: folder },
  )
  t.match(stderr, /llm-proxy: the chat template is not valid: .*unexpected end of template/)
  t.equal(code, 2)
})

t.test('a port in use ends the start, even while Python is starting', async (t) => {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as { port: number }
  const { code, stderr } = await runLlmProxy(
    ['serve', '--port', `${port}`, '--db', 'memory', '--tokenizer', 'embedded'],
    { cwd: t.testdir() },
  )
  t.match(stderr, new RegExp(`llm-proxy: .*${port}`))
  t.equal(code, 1)
})
