/**
 * gpt-oss's prompts by harmony's rules, compared with the output of vLLM's own code and of openai-harmony for
 * the same chats.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { choosePromptFormat } from '../../../../../src/proxy/tokens/templates/prompt-format.ts'
import { createTemplate } from '../../../../helpers/templates.ts'

interface Fixture {
  date: string
  vectors: [messages: string, tools: string, effort: string | null, prompt: string][]
}

const { date, vectors }: Fixture = JSON.parse(
  readFileSync(new URL('../fixtures/harmony-prompts.json', import.meta.url), 'utf8'),
)
const harmony = createTemplate('{{ "not used" }}', {}, 'harmony')
const now = new Date(`${date}T12:00:00`)

t.test('prompts of gpt-oss equal those of vLLM, for any messages and schemas', async (t) => {
  t.ok(vectors.length > 100)
  for (const [messages, tools, effort, prompt] of vectors) {
    const found = harmony.render(splitMessages(messages), {
      tools: tools === '[]' ? null : tools,
      ...(effort !== null && { kwargs: { reasoning_effort: effort } }),
      now,
    })
    if (found !== prompt) t.equal(found, prompt, `${messages} ${tools}`)
  }
})

const user = { role: 'user' as const, content: 'Well?' }

t.test('an effort, a tool or an image that harmony cannot represent is rejected', async (t) => {
  const rejected = { code: 'invalid_request', message: /harmony supports only low, medium, high/ }
  t.throws(() => harmony.render([user], { kwargs: { reasoning_effort: 'max' } }), rejected)
  const builtin = { kwargs: { builtin_tools: ['python'] } }
  t.throws(() => harmony.render([user], builtin), {
    message: /only the model's own template supports builtin_tools/,
  })
  const image = { type: 'image_url' as const, image_url: { url: 'data:image/png;base64,AA==' } }
  t.throws(() => harmony.render([{ role: 'user', content: [image] }]), {
    code: 'unsupported',
    param: 'messages.0.content.0',
  })
})

t.test('the text of the last response may be continued', async (t) => {
  const messages = [user, { role: 'assistant' as const, content: 'It is ' }]
  const prompt = harmony.render(messages, { addGenerationPrompt: false, continueFinalMessage: true })
  t.ok(prompt.endsWith('<|end|><|start|>assistant<|channel|>final<|message|>It is '), prompt)
})

t.test('harmony is selected for a template that writes it, unless an operator overrides it', async (t) => {
  const gptOss = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}{{ '<|channel|>commentary' }}"
  t.match(choosePromptFormat('auto', gptOss), {
    name: 'harmony',
    chosenBy: 'template',
    evidence: ['<|start|>assistant', '<|channel|>analysis', '<|channel|>commentary'],
  })
  t.match(choosePromptFormat('auto', '<|im_start|>assistant'), {
    name: 'template',
    evidence: { length: 0 },
  })
  t.match(choosePromptFormat('template', gptOss), { name: 'template', chosenBy: 'name' })
  t.match(choosePromptFormat('harmony', 'x'), { name: 'harmony', chosenBy: 'name' })
})

/** Returns the JSON of each message of a list. */
function splitMessages(messages: string): string[] {
  return (JSON.parse(messages) as unknown[]).map((message) => JSON.stringify(message))
}
