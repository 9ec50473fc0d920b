import { setImmediate } from 'node:timers/promises'
import t from 'tap'
import { parseRequest } from '../../../src/protocol/canonical/number-texts.ts'
import { PromptThread } from '../../../src/proxy/tokens/prompt/prompt-service.ts'
import { getChatTemplateFiles } from '../../../src/proxy/tokens/templates/chat-template.ts'
import type { PythonThreadLimits } from '../../../src/proxy/tokens/templates/python/python-thread.ts'

const tokens = { ids: new Map([['<|im_end|>', 1]]), eosIds: new Set([1]) }
async function start(source: string, limits?: Partial<PythonThreadLimits>): Promise<PromptThread> {
  const thread = new PromptThread({ template: getChatTemplateFiles(source), tokens }, limits)
  await thread.launch().catch(async (error: unknown) => {
    await thread.close()
    throw error
  })
  return thread
}
const messagesJson = (content: string) => [JSON.stringify({ role: 'user', content })]

const HOSTILE =
  '{% set said = messages[0].content %}' +
  '{% if said == "slow" %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}' +
  '{% if said == "large" %}{% set huge = said * 400000000 %}{% endif %}{{ said }}'

t.test('prompts are rendered on a thread, in order', async (t) => {
  const prompts = await start(
    '{{ messages[0].content }}{{ raise_exception("no") if messages[0].content == "bad" }}',
  )
  t.teardown(() => prompts.close())
  const texts = await Promise.all(['a', 'b', 'c'].map((content) => prompts.render(messagesJson(content), {})))
  t.same(texts, ['a', 'b', 'c'])
  await t.rejects(prompts.render(messagesJson('bad'), {}), {
    code: 'invalid_request',
    param: 'messages',
    message: /no/,
  })
  const image = '{"role":"user","content":[{"type":"image_url"}]}'
  await t.rejects(prompts.render([image], {}), { code: 'unsupported', param: 'messages.0.content.0' })
})

t.test('short prompts precede long ones, but do not starve them', async (t) => {
  const prompts = await start('{{ messages[0].content }}')
  t.teardown(() => prompts.close())
  const done: string[] = []
  const render = async (name: string, messages: number) => {
    const texts = Array.from({ length: messages }, () => messagesJson(name)).flat()
    done.push(await prompts.render(texts, {}))
  }
  // The first job starts before the others arrive.
  await Promise.all([
    ...['long-1', 'long-2', 'long-3'].map((name) => render(name, 1_001)),
    ...Array.from({ length: 70 }, () => render('short', 1)),
  ])
  t.equal(done[0], 'long-1')
  t.equal(done.indexOf('long-2'), 65, 'behind 64 short ones')
  t.equal(done.indexOf('long-3'), 72)
})

t.test('numbers of variables and documents reach the template as they were written', async (t) => {
  const prompts = await start('{{ n }} {{ big }} {{ nested[0].x }} {{ documents[0].score }}')
  t.teardown(() => prompts.close())
  const body = parseRequest(
    '{"chat_template_kwargs":{"n":1000.0,"big":12345678901234567890,"nested":[{"x":1e-9}]},"documents":[{"score":2.50}]}',
  ) as { chat_template_kwargs: Record<string, unknown>; documents: unknown[] }
  const { chat_template_kwargs: kwargs, documents } = body
  const text = '1000.0 12345678901234567890 1e-09 2.5'
  t.equal(await prompts.render(messagesJson('x'), { kwargs, documents }), text)
  t.equal(await prompts.render(messagesJson('x'), { kwargs: JSON.stringify(kwargs), documents }), text)
})

t.test('a template that takes too long fails only its own request', async (t) => {
  const prompts = await start(HOSTILE, { timeLimitMs: 3_000 })
  t.teardown(() => prompts.close())
  const slow = prompts.render(messagesJson('slow'), {})
  const next = prompts.render(messagesJson('hello'), {})
  await t.rejects(slow, { code: 'invalid_request', message: /more than 3 s/ })
  t.equal(await next, 'hello')
})

t.test('a template that takes too much memory fails only its own request', async (t) => {
  const prompts = await start(HOSTILE, { maxMemoryBytes: 200 * 2 ** 20 })
  t.teardown(() => prompts.close())
  const large = prompts.render(messagesJson('large'), {})
  const next = prompts.render(messagesJson('hello'), {})
  await t.rejects(large, { code: 'invalid_request', message: /memory/ })
  t.equal(await next, 'hello')
})

t.test('a job that completes while the event loop is blocked does not exceed its time limit', async (t) => {
  const steps = '{% for a in range(2) %}{% for b in range(99999) %}{% endfor %}{% endfor %}'
  const prompts = await start(`${steps}{{ messages[0].content }}`, { timeLimitMs: 3_000 })
  t.teardown(() => prompts.close())
  const rendered = prompts.render(messagesJson('a'), {})
  await setImmediate()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5_000)
  t.equal(await rendered, 'a')
})

t.test('an invalid Jinja template ends the start', async (t) => {
  await t.rejects(start('{% if %}'), { code: 'config_invalid', message: /chat template is not valid/ })
})

t.test('the queue is bounded, and fails when the proxy shuts down', async (t) => {
  const prompts = await start(HOSTILE, { maxQueued: 1, timeLimitMs: 60_000 })
  const [slow, waiting, rejected] = ['slow', 'a', 'b'].map((content) =>
    prompts.render(messagesJson(content), {}),
  )
  await t.rejects(rejected!, { code: 'queue_full' })
  const ended = Promise.all([slow, waiting].map((one) => t.rejects(one!, { code: 'shutting_down' })))
  await prompts.close()
  await ended
  await t.rejects(prompts.render(messagesJson('a'), {}), { code: 'shutting_down' })
})

t.test(
  'a template that exceeds the time limit in the probe is invalid, and the error does not blame Python',
  async (t) => {
    const slow = '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}'
    await t.rejects(start(slow, { timeLimitMs: 1_000 }), {
      code: 'config_invalid',
      message: /the chat template .* more than 6 s/,
    })
    // The probe finds that this template takes text, and the template is slow only in a later rendering.
    const later = `{% if messages[0].content == "next" %}${slow}{% endif %}{{ messages[0].content }}`
    await t.rejects(start(later, { timeLimitMs: 1_000 }), {
      code: 'config_invalid',
      message: /the chat template .* more than 1 s/,
    })
  },
)
