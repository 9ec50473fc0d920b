import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import type { NewPart } from '../../../../../src/proxy/tokens/prompt/prompt-engine.ts'
import { createTemplateSignature } from '../../../../../src/proxy/tokens/prompt/template-signature.ts'
import { IS_FULL } from '../../../../helpers/tier.ts'
import {
  CHATML,
  CONTENT,
  createThread,
  HISTORY,
  question,
  renderResultPart,
  SYSTEM,
  setUp,
  sharedModel,
} from './specializer-rig.ts'

const TEXTS = fc.oneof(
  fc.string({ unit: 'grapheme' }),
  fc.constantFrom('', ' ', '<tool_response>x</tool_response>', '<think>a</think>', '\n a \u3000'),
)

for (const name of ['qwen3', 'embedded']) {
  t.test(`${name}: prompts and new parts equal the template's, without a job for most of them`, async (t) => {
    const { thread, prompts, jobs, faults } = setUp(name)
    let count = 0
    await fc.assert(
      fc.asyncProperty(TEXTS, async (text) => {
        count += 1
        const conversation = [SYSTEM, question(text)]
        t.equal(await prompts.render(conversation, {}), await thread.render(conversation, {}))
        t.strictSame(await renderResultPart(prompts, text), await renderResultPart(thread, text))
      }),
      { numRuns: IS_FULL ? 150 : 50 },
    )
    t.ok(jobs.render! < count / 2, `${jobs.render} of ${count} prompts are jobs`)
    t.ok(jobs.newPart! < count / 2, `${jobs.newPart} of ${count} new parts are jobs`)
    t.strictSame(faults, [])
  })
}

for (const name of ['qwen3', 'embedded']) {
  t.test(`${name}: Python writes fewer than 20 of 200 new messages`, async (t) => {
    const { prompts, jobs, faults } = setUp(name)
    for (let index = 0; index < 200; index += 1) {
      const { text } = (await renderResultPart(prompts, `line ${index} of a result`)) as NewPart
      t.match(text, `line ${index} of a result`)
    }
    // Two before the template is specialized, those that verify it, and some that compare it.
    t.ok(jobs.newPart! < 20, `${jobs.newPart} of 200 new messages are jobs`)
    t.strictSame(faults, [])
  })
}

t.test('tools, variables and roles are part of the shape', async (t) => {
  const { thread, prompts } = setUp('qwen3')
  const tools = JSON.stringify([{ type: 'function', function: { name: 'read', parameters: {} } }])
  const variants = [{}, { tools }, { kwargs: { enable_thinking: false } }, { addGenerationPrompt: false }]
  for (let round = 0; round < 4; round += 1)
    for (const options of variants)
      for (const conversation of [[question(`${round}`)], [SYSTEM, question(`${round}`)]])
        t.equal(await prompts.render(conversation, options), await thread.render(conversation, options))
})

t.test('a specialization that does not reproduce its own sample is not used', async (t) => {
  const { thread, prompts, jobs } = setUp('qwen3', {
    specialize: async () => ({ pieces: ['x'], conditions: [] }),
  })
  for (let index = 0; index < 10; index += 1)
    t.equal(await prompts.render([question('a')], {}), await thread.render([question('a')], {}))
  t.equal(jobs.render, 10)
})

t.test('a specialization that differs from the template is detected, and none is used again', async (t) => {
  const { thread, prompts, faults } = setUp('qwen3', {
    specialize: async (messages, options) => ({
      pieces: [await thread.render(messages, options)],
      conditions: [],
    }),
  })
  for (let index = 0; index < 3; index += 1) await prompts.render([question('a')], {})
  for (let index = 0; index < 70; index += 1) await prompts.render([question('b')], {})
  await setImmediate()
  t.strictSame(faults, ['fault'])
  t.equal(await prompts.render([question('b')], {}), await thread.render([question('b')], {}))
})

t.test('the history is verified on the complete conversation when the count has doubled', async (t) => {
  const { prompts, jobs } = setUp('qwen3')
  const verified: number[] = []
  for (let count = 1; count <= 70; count += 1) {
    const before = jobs.newPart!
    const part = (await renderResultPart(prompts, `text ${count}`)) as NewPart
    t.match(part.text, `text ${count}`)
    if (jobs.newPart! > before) verified.push(count)
  }
  t.ok(verified.length < 16, `jobs for ${verified.join()}`)
  t.ok(verified.some((count) => count > 30))
})

t.test('a rejection where a specialization has a text is a difference', async (t) => {
  const { thread, prompts, faults } = setUp('qwen3', {
    specialize: async (messages, options) => ({
      pieces: [await thread.render(messages, options)],
      conditions: [],
    }),
    render: async (messages, options) => {
      if (JSON.stringify(messages).includes('rejected')) throw new ProxyError('invalid_request', 'rejected')
      return thread.render(messages, options)
    },
  })
  for (let index = 0; index < 3; index += 1) await prompts.render([question('a')], {})
  for (let index = 0; index < 70; index += 1) await prompts.render([question('rejected')], {}).catch(() => '')
  await setImmediate()
  t.strictSame(faults, ['fault'])
})

t.test(
  'an error of the thread is not a difference, and a failed specialization is retried later',
  async (t) => {
    let fails = 0
    const { prompts, jobs, faults } = setUp('qwen3', {
      specialize: async () => {
        fails += 1
        throw new Error('busy')
      },
    })
    for (let index = 0; index < 500; index += 1) await prompts.render([question(`${index}`)], {})
    t.strictSame([fails, jobs.render, faults], [1, 500, []])
  },
)

t.test('a signature that a dummy history does not represent is no longer specialized', async (t) => {
  let isRefuted = false
  const { thread } = setUp('qwen3')
  const { prompts, jobs } = setUp('qwen3', {
    renderNewPart: async (request, options) => {
      const reply = await thread.renderNewPart(request, options)
      return isRefuted && typeof reply === 'object' && 'text' in reply
        ? { ...reply, needsHistory: true }
        : reply
    },
    specializePart: (...input) => (isRefuted ? Promise.resolve(undefined) : thread.specializePart(...input)),
  })
  for (let count = 1; count <= 10; count += 1) await renderResultPart(prompts, `text ${count}`)
  const before = jobs.newPart
  await renderResultPart(prompts, 'text')
  t.equal(jobs.newPart, before, 'it is specialized')
  isRefuted = true
  // Messages of another shape with the same signature.
  await renderResultPart(prompts, 'text', HISTORY, { name: 'read' })
  const after = jobs.newPart
  await renderResultPart(prompts, 'text')
  t.ok(jobs.newPart > after)
})

t.test('an unpaired surrogate in a template variable does not hide the end of a turn', async (t) => {
  const thread = createThread('qwen3', CHATML('', `${CONTENT}{{ note }}`))
  const newMessages = [question('Next.')]
  const history: ChatMessage[] = [question('What?'), { role: 'assistant', content: 'That.' }]
  const request = {
    situation: createTemplateSignature(history, newMessages, false),
    history: history.slice(0, -1),
    newMessages,
  }
  const { end } = sharedModel('qwen3')
  for (const note of ['', 'x', '\udc00', '\udc01', '\ud800']) {
    const part = await thread.renderNewPart(request, { kwargs: { note } })
    t.match(part, {
      text: `\n<|im_start|>user\nNext.${note}<|im_end|>\n<|im_start|>assistant\n`,
      endId: end.id,
    })
  }
})
