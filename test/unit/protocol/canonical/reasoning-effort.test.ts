import fc from 'fast-check'
import t from 'tap'
import {
  adaptEffort,
  EFFORT_LEVELS,
  type EffortSupport,
  findNearestLevel,
  getEffort,
  parseEffortRejection,
  REASONING_EFFORTS,
  readEffortChange,
} from '../../../../src/protocol/canonical/reasoning-effort.ts'
import type { ChatBody } from '../../../../src/protocol/canonical/request.ts'

const messages: ChatBody['messages'] = [{ role: 'user', content: 'Well?' }]

function createSupport(...accepted: string[]): EffortSupport {
  const rejected = new Set(REASONING_EFFORTS.filter((effort) => !accepted.includes(effort)))
  return { rejected, hasThinkingSwitch: true }
}

const QWEN_3_8 = createSupport('low', 'medium', 'xhigh')
const GLM_5_2 = createSupport('low', 'high', 'max')
const GPT_OSS = { ...createSupport('low', 'medium', 'high'), hasThinkingSwitch: false }

const sent = (support: EffortSupport, effort: string) =>
  getEffort(adaptEffort({ messages, reasoning_effort: effort }, support).body)

t.test('an effort becomes the nearest one that the model accepts, and the higher of two', async (t) => {
  const table = (support: EffortSupport) => EFFORT_LEVELS.map((level) => sent(support, level)).join(' ')
  //                        minimal low medium high xhigh max
  t.equal(table(QWEN_3_8), 'low low medium xhigh xhigh xhigh')
  t.equal(table(GLM_5_2), 'low low high high max max')
  t.equal(table(GPT_OSS), 'low low medium high high high')
  t.equal(table(createSupport('minimal', 'max')), 'minimal minimal minimal max max max')
  t.equal(table(createSupport()), EFFORT_LEVELS.join(' '), 'without choices the engine decides')
})

t.test(
  'the nearest level is no farther than any other accepted one, and accepted levels are unchanged',
  async () => {
    const levels = fc.constantFrom<string>(...EFFORT_LEVELS)
    const rank = (level: string) => (EFFORT_LEVELS as readonly string[]).indexOf(level)
    fc.assert(
      fc.property(levels, fc.uniqueArray(levels, { minLength: 1 }), levels, (requested, accepted, limit) => {
        const found = findNearestLevel(requested, (level) => accepted.includes(level), limit)
        const allowed = accepted.filter((level) => rank(level) <= rank(limit))
        if (allowed.length === 0) return found === undefined
        const distance = (level: string) => Math.abs(rank(level) - rank(requested))
        return (
          allowed.includes(found!) &&
          allowed.every(
            (level) =>
              distance(found!) < distance(level) ||
              (distance(found!) === distance(level) && rank(found!) >= rank(level)),
          )
        )
      }),
    )
  },
)

t.test('a request is adapted in both fields that name an effort, and the change is reported', async (t) => {
  const kwargs = { reasoning_effort: 'high', custom: 1 }
  t.strictSame(adaptEffort({ messages, reasoning_effort: 'max', chat_template_kwargs: kwargs }, QWEN_3_8), {
    body: {
      messages,
      reasoning_effort: 'xhigh',
      chat_template_kwargs: { custom: 1, reasoning_effort: 'xhigh' },
    },
    change: { requested: 'max', sent: 'xhigh' },
  })
  t.strictSame(adaptEffort({ messages, chat_template_kwargs: kwargs }, QWEN_3_8), {
    body: { messages, chat_template_kwargs: { custom: 1, reasoning_effort: 'xhigh' } },
    change: { requested: 'high', sent: 'xhigh' },
  })
})

t.test('a request that needs no change is the same object', async (t) => {
  const cases: [ChatBody, EffortSupport | undefined][] = [
    [{ messages }, QWEN_3_8],
    [{ messages, reasoning_effort: null }, QWEN_3_8],
    [{ messages, reasoning_effort: 'medium' }, QWEN_3_8],
    [{ messages, reasoning_effort: 'high' }, undefined],
    [{ messages, reasoning_effort: 'no_think' }, QWEN_3_8],
    [{ messages, reasoning_effort: 40 }, QWEN_3_8],
    [{ messages, reasoning_effort: 'low', chat_template_kwargs: { reasoning_effort: 'high' } }, QWEN_3_8],
    [{ messages, reasoning_effort: 'none' }, GPT_OSS],
  ]
  for (const [body, support] of cases) {
    const adapted = adaptEffort(body, support)
    t.equal(adapted.body, body, JSON.stringify(body))
    t.equal(adapted.change, undefined)
  }
})

t.test('reasoning that is disabled stays disabled, and is never raised', async (t) => {
  t.strictSame(adaptEffort({ messages, reasoning_effort: 'none' }, QWEN_3_8), {
    body: { messages, chat_template_kwargs: { enable_thinking: false } },
    change: { requested: 'none', sent: null },
  })
  const off = { enable_thinking: false }
  const disabled = (effort: string, support: EffortSupport) =>
    adaptEffort({ messages, reasoning_effort: effort, chat_template_kwargs: off }, support).body
  t.strictSame(disabled('high', QWEN_3_8), {
    messages,
    reasoning_effort: 'medium',
    chat_template_kwargs: off,
  })
  t.strictSame(disabled('minimal', QWEN_3_8), { messages, chat_template_kwargs: off })
  t.strictSame(disabled('high', createSupport('max')), { messages, chat_template_kwargs: off })
  const deepseek = { messages, reasoning_effort: 'high', chat_template_kwargs: { thinking: false } }
  t.equal(adaptEffort(deepseek, QWEN_3_8).body.reasoning_effort, 'medium')
})

t.test("an engine's error states which efforts it rejects", async (t) => {
  const findRejected = (message: string, effort: string) => {
    const found = parseEffortRejection(message, effort)
    return found && REASONING_EFFORTS.filter((name) => found.has(name)).join(' ')
  }
  const qwen = 'Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low'
  t.equal(findRejected(qwen, 'high'), 'minimal high max')
  const http500 = `the engine at http://e responded with HTTP 500: ${qwen}`
  t.equal(findRejected(http500, 'high'), 'minimal high max')
  const harmony =
    "reasoning_effort='max' is not supported by Harmony. Supported values are: high, medium, low."
  t.equal(findRejected(harmony, 'max'), 'minimal xhigh max')
  const schema =
    "[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': \"Input should be 'none', 'minimal', " +
    "'low', 'medium', 'high' or 'xhigh'\", 'input': 'max'}]"
  t.equal(findRejected(schema, 'max'), 'max')
  t.equal(findRejected('Unsupported effort: max', 'max'), 'max', 'without a list, the value alone')
  t.equal(findRejected("Harmony does not support reasoning_effort='none'", 'none'), 'none')
})

t.test('an error about another parameter does not concern efforts', async (t) => {
  for (const message of [
    'temperature must be non-negative, got -1; high values are fine, low ones too',
    'reasoning_effort and thinking_token_budget cannot both be set',
    "[{'loc': ('body', 'tools'), 'input': {'reasoning_effort': 'high', 'top_k': 1}}]",
    '[{"loc": ["body"], "input": {"reasoning_effort": "high"}}]',
    `${'x'.repeat(3_000)} Unexpected reasoning effort high`,
  ])
    t.equal(parseEffortRejection(message, 'high'), undefined, message.slice(0, 80))
  t.equal(parseEffortRejection('Unexpected reasoning effort 40', '40'), undefined)
  t.equal(parseEffortRejection('Unexpected reasoning effort', undefined), undefined)
})

t.test('a recorded turn states how its effort was adapted', async (t) => {
  const change = { requested: 'high', sent: 'xhigh' }
  t.strictSame(readEffortChange({ annotations: JSON.stringify({ reasoning_effort: change }) }), change)
  t.equal(readEffortChange({ annotations: '{}' }), undefined)
  const nested = { request_fields: { reasoning_effort: change } }
  t.equal(readEffortChange({ annotations: JSON.stringify(nested) }), undefined)
})
