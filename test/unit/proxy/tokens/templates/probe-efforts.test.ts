import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { REASONING_EFFORTS } from '../../../../../src/protocol/canonical/reasoning-effort.ts'
import { probeEfforts } from '../../../../../src/proxy/tokens/templates/probe-efforts.ts'
import type { PromptFormat } from '../../../../../src/proxy/tokens/templates/prompt-format.ts'
import { QWEN_3_8_CHECK } from '../../../../helpers/effort-rules.ts'
import { createTemplate } from '../../../../helpers/templates.ts'
import { readModelConfig } from '../real-models.ts'

const QWEN_3 = readModelConfig('qwen3').chat_template as string
const CHAT = '{%- for message in messages -%}{{ message.content }}{%- endfor -%}'
/** The check of GLM 5.2 and Kimi K3. */
const LOW_HIGH_MAX =
  "{%- set effort = reasoning_effort | default('high') -%}" +
  "{%- if effort not in ['low', 'high', 'max'] -%}{{ raise_exception('Invalid reasoning_effort: ' ~ effort) }}{%- endif -%}" +
  'Reasoning Effort: {{ effort }}'

async function probe(source: string, format?: PromptFormat) {
  const template = createTemplate(source, {}, format)
  const found = await probeEfforts(async (kwargs) =>
    template.render([{ role: 'user', content: 'Hello.' }], { kwargs }),
  )
  return (
    found && {
      accepted: REASONING_EFFORTS.filter((effort) => !found.rejected.has(effort)).join(' '),
      isRead: found.isRead,
      hasThinkingSwitch: found.hasThinkingSwitch,
    }
  )
}

const ALL = REASONING_EFFORTS.join(' ')

t.test('the efforts of a template are those with which it renders a chat', async (t) => {
  t.strictSame(await probe(QWEN_3_8_CHECK + QWEN_3), {
    accepted: 'low medium xhigh',
    isRead: true,
    hasThinkingSwitch: true,
  })
  t.strictSame(await probe(LOW_HIGH_MAX + CHAT), {
    accepted: 'low high max',
    isRead: true,
    hasThinkingSwitch: false,
  })
  t.strictSame(await probe('{{ "not used" }}', 'harmony'), {
    accepted: 'low medium high',
    isRead: true,
    hasThinkingSwitch: false,
  })
})

t.test('a template that ignores the effort, or unknown values of it, accepts all', async (t) => {
  t.strictSame(await probe(CHAT), { accepted: ALL, isRead: false, hasThinkingSwitch: false })
  t.strictSame(await probe(QWEN_3), { accepted: ALL, isRead: false, hasThinkingSwitch: true })
  const lenient = `{%- if reasoning_effort == 'high' -%}Think hard. {%- endif -%}${CHAT}`
  t.strictSame(await probe(lenient), { accepted: ALL, isRead: true, hasThinkingSwitch: false })
})

t.test('a template may accept every level and raise only on none', async (t) => {
  const raises = "{%- if reasoning_effort == 'none' -%}{{ raise_exception('no') }}{%- endif -%}"
  t.strictSame(await probe(raises + QWEN_3), {
    accepted: 'minimal low medium high xhigh max',
    isRead: true,
    hasThinkingSwitch: true,
  })
})

t.test('a template that rejects the chat itself has unknown efforts', async (t) => {
  t.equal(await probe("{{ raise_exception('a system message, please') }}"), undefined)
})

t.test('a failure of the renderer does not count as a rejection', async (t) => {
  const stopped = new ProxyError('start_failed', 'the thread has stopped')
  t.equal(
    await probeEfforts(async (kwargs) => {
      if (kwargs?.reasoning_effort === 'low') throw stopped
      return 'text'
    }),
    undefined,
  )
  const broken = new TypeError('broken')
  await t.rejects(
    probeEfforts(async () => {
      throw broken
    }),
    broken,
  )
})
