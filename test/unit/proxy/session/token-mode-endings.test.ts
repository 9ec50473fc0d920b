/**
 * Prompts that do not end at the start of the assistant's turn: `continue_final_message`,
 * `add_generation_prompt: false`.
 */
import t, { type Test } from 'tap'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import { Forest } from '../../../../src/proxy/session/trajectories/forest.ts'
import { readTraces } from '../../../../src/proxy/session/trajectories/traces.ts'
import { TrajectoryBuilder } from '../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TurnRecord, TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { createRenderer, createTemplate } from '../../../helpers/templates.ts'
import { createTokenModeRig } from '../../../helpers/token-mode-rig.ts'
import { loadTokenModel } from './conversation-player.ts'

const model = loadTokenModel('qwen2_5')

/** Starts an engine that sends these texts, one per request; one that ends with a dash is truncated there. */
async function setUp(t: Test, responses: string[], store?: TurnStore) {
  const respond = () => {
    const text = responses.shift()!
    return { text, isCut: text.endsWith('-') }
  }
  return createTokenModeRig(t, model as TokenModel, respond, store)
}

/** A template of models that always reason. */
const OPENS_REASONING = `{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}`

const TOOLS = [
  { type: 'function' as const, function: { name: 'f', parameters: { type: 'object', properties: {} } } },
]
const CONTINUED = { continue_final_message: true, add_generation_prompt: false }
const user: ChatMessage = { role: 'user', content: 'Count.' }
const assistantMessage = (content: string): ChatMessage => ({ role: 'assistant', content })
const getText = ({ promptTokenIds }: TurnRecord) => model.tokenizer.decode(promptTokenIds)
const getPrompt = ({ annotations }: TurnRecord) => JSON.parse(annotations).prompt

t.test('a final message is continued, and only sampled tokens are trained', async (t) => {
  const { sendRequest, store } = await setUp(t, [' three.', 'Four.'])
  const turn = await sendRequest([user, assistantMessage('One, two,')], CONTINUED)
  t.match(getText(turn), /<\|im_start\|>user\nCount.<\|im_end\|>\n<\|im_start\|>assistant\nOne, two,$/)
  t.equal(turn.completionText, ' three.')
  const next = await sendRequest([
    user,
    assistantMessage('One, two, three.'),
    { role: 'user', content: 'And?' },
  ])
  t.match(getPrompt(next), { reason: 'extended', from: turn.turnId })
  t.match(getText(next), /One, two, three.<\|im_end\|>\n<\|im_start\|>user\nAnd\?/)
  const builder = new TrajectoryBuilder()
  for await (const step of store.readSteps('s')) builder.add(step)
  const [row, ...others] = [...builder.assembleRows({}, null)]
  t.equal(others.length, 0)
  t.equal(model.tokenizer.decode(row!.prompt_ids), getText(turn), 'the message that it continues is prompt')
  const trained = row!.response_ids.filter((_, index) => row!.response_mask[index] === 1)
  t.equal(model.tokenizer.decode(trained, { skipSpecialTokens: true }), ' three.Four.')
  // A process that has the turns in the store only does the same.
  const later = await setUp(t, ['Five.'], store)
  const restored = await later.sendRequest([
    user,
    assistantMessage('One, two, three.'),
    { role: 'user', content: 'Well?' },
  ])
  t.match(getPrompt(restored), { reason: 'forked', from: turn.turnId })
})

t.test('a truncated response is continued from its own tokens', async (t) => {
  const { sendRequest, store } = await setUp(t, ['One, two -', ' three.', 'Four.'])
  const cut = await sendRequest([user])
  const turn = await sendRequest([user, assistantMessage('One, two -')], CONTINUED)
  t.strictSame([...turn.promptTokenIds], [...cut.promptTokenIds, ...cut.completionTokenIds])
  t.match(
    getPrompt(turn),
    { reason: 'extended', from: cut.turnId, parent: null },
    'one message with the truncated one',
  )
  // A process that has the turns in the store only continues both of them.
  const later = await setUp(t, ['Five.'], store)
  const restored = await later.sendRequest([user, assistantMessage('One, two - three.'), user])
  t.match(getPrompt(restored), { reason: 'extended', from: turn.turnId })
  const next = await sendRequest([user, assistantMessage('One, two - three.'), user])
  t.match(getPrompt(next), { reason: 'extended', from: turn.turnId })
})

t.test(
  'a response truncated within its reasoning continues reasoning, and one truncated after it does not',
  async (t) => {
    const qwen3 = loadTokenModel('qwen3') as TokenModel
    const continueResponse = async (cutOff: string, more: string, echo: object, tokenModel = qwen3) => {
      const texts = [cutOff, more]
      const { sendRequest } = await createTokenModeRig(t, tokenModel, () => {
        const text = texts.shift()!
        return { text, isCut: text.endsWith('-') }
      })
      const cut = await sendRequest([user])
      const turn = await sendRequest([user, { role: 'assistant', ...echo } as ChatMessage], CONTINUED)
      t.match(getPrompt(turn), { reason: 'extended', from: cut.turnId })
      return { reasoning: turn.reasoning?.trim(), content: turn.completionText?.trim() }
    }
    const thought = { reasoning_content: 'I wonder -' }
    t.strictSame(
      await continueResponse('<think>\nI wonder -', ' why.\n</think>\n\nDone.', { content: '', ...thought }),
      {
        reasoning: 'why.',
        content: 'Done.',
      },
    )
    const renderer = createRenderer(createTemplate(OPENS_REASONING), qwen3.tokenizer, {
      source: OPENS_REASONING,
    })
    const opened = { ...qwen3, renderer, source: OPENS_REASONING } as TokenModel
    t.strictSame(
      await continueResponse('I wonder -', ' why.\n</think>\n\nDone.', { content: '', ...thought }, opened),
      {
        reasoning: 'why.',
        content: 'Done.',
      },
    )
    const message = { content: 'One -', reasoning_content: 'I count.' }
    t.strictSame(await continueResponse('<think>\nI count.\n</think>\n\nOne -', ' two.', message), {
      reasoning: undefined,
      content: 'two.',
    })
  },
)

t.test(
  'a response that ended itself is rendered, because its end token would precede the continuation',
  async (t) => {
    const { sendRequest } = await setUp(t, ['One.', ' Two.'])
    await sendRequest([user])
    const turn = await sendRequest([user, assistantMessage('One.')], CONTINUED)
    t.match(getPrompt(turn), { reason: 'branched' })
    t.match(getText(turn), /assistant\nOne\.$/)
  },
)

t.test('a request that ends with the previous completion continues from its tokens', async (t) => {
  for (const text of ['One.', 'One -']) {
    const { sendRequest, store } = await setUp(t, [text, 'Two.', 'Three.'])
    const first = await sendRequest([user])
    t.notOk('parent' in getPrompt(first))
    const second = await sendRequest([user, assistantMessage(text)])
    t.match(getPrompt(second), { reason: 'extended', from: first.turnId })
    t.equal(getText(second), `${getText(first)}${text}<|im_end|>\n<|im_start|>assistant\n`)
    const rendered = await model.renderer.renderFull([user, assistantMessage(text)])
    t.strictSame([...second.promptTokenIds], [...rendered.ids], 'as the template renders it')
    const third = await sendRequest([user, assistantMessage(text), assistantMessage('Two.'), user])
    t.match(getPrompt(third), { reason: 'extended', from: second.turnId })
    const builder = new TrajectoryBuilder()
    for await (const step of store.readSteps('s')) builder.add(step)
    t.equal([...builder.assembleRows({}, null)].length, 1)
  }
})

t.test('the start of the turn is left to the model', async (t) => {
  const turn = await (await setUp(t, ['x'])).sendRequest([user], { add_generation_prompt: false })
  t.match(getText(turn), /<\|im_start\|>user\nCount.<\|im_end\|>\n$/)
})

for (const limit of ['contextLength', 'servedLength']) {
  t.test(`a prompt that cannot fit is rejected before rendering: ${limit}`, async (t) => {
    let rendered = 0
    const renderer = new Proxy(model.renderer, {
      get: (target, name) => {
        if (name === 'renderFull') rendered += 1
        const value = Reflect.get(target, name)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    const small = { ...model, renderer, [limit]: 100 } as TokenModel
    const { sendRequest } = await createTokenModeRig(t, small, () => ({ text: 'One.' }))
    const long: ChatMessage = { role: 'user', content: [{ type: 'text', text: 'sea '.repeat(100_000) }] }
    await t.rejects(sendRequest([user, long]), {
      code: 'context_length_exceeded',
      message: /contains at least \d{4,} input tokens/,
    })
    t.equal(rendered, 0)
    await sendRequest([user, assistantMessage('x'.repeat(1_000))])
    t.equal(rendered, 1, 'parts that a template may omit are not counted')
  })
}

t.test('stop strings without a limit are rejected', async (t) => {
  const { sendRequest } = await setUp(t, ['One.'])
  const rejected = { code: 'invalid_request', param: 'stop' }
  await t.rejects(sendRequest([user], { stop: 'x'.repeat(4_097) }), rejected)
  await t.rejects(
    sendRequest([user], { stop: Array.from({ length: 65 }, (_, index) => `${index}`) }),
    rejected,
  )
  t.match(await sendRequest([user], { stop: ['x'.repeat(4_095), 'y'] }), { completionText: 'One.' })
})

t.test('messages that cannot be continued are rejected', async (t) => {
  const { sendRequest } = await setUp(t, [])
  await t.rejects(sendRequest([], CONTINUED), { code: 'invalid_request' })
  await t.rejects(sendRequest([user, assistantMessage('a')], { ...CONTINUED, add_generation_prompt: true }), {
    code: 'invalid_request',
    param: 'continue_final_message',
  })
  const call = { id: 'a', type: 'function' as const, function: { name: 'f', arguments: '{}' } }
  await t.rejects(sendRequest([user, { role: 'assistant', content: null, tool_calls: [call] }], CONTINUED), {
    code: 'invalid_request',
  })
})

t.test('a completion truncated in its reasoning is closed as by the template, untrained', async (t) => {
  const qwen3 = loadTokenModel('qwen3') as TokenModel
  const renderer = createRenderer(createTemplate(OPENS_REASONING), qwen3.tokenizer, {
    source: OPENS_REASONING,
  })
  const opened = { ...qwen3, renderer, source: OPENS_REASONING } as TokenModel
  const getTextAfter = async (tokenModel: TokenModel, cutOff: string, echo: object) => {
    const responses = [{ text: cutOff, isCut: true }, { text: 'Yes.' }]
    const { sendRequest, store } = await createTokenModeRig(t, tokenModel, () => responses.shift()!)
    const cut = await sendRequest([user])
    const next = await sendRequest([user, { role: 'assistant', ...echo } as ChatMessage, user])
    t.match(getPrompt(next), { reason: 'extended', from: cut.turnId })
    const from = cut.promptTokenIds.length + cut.completionTokenIds.length
    const text = tokenModel.tokenizer.decode(next.promptTokenIds.slice(from))
    const builder = new TrajectoryBuilder()
    for await (const step of store.readSteps('s')) builder.add(step)
    const rows = [...builder.assembleRows({}, null)]
    t.equal(rows.length, 1)
    const trained = rows[0]!.response_ids.filter((_, index) => rows[0]!.response_mask[index] === 1)
    t.same([...trained], [...cut.completionTokenIds, ...next.completionTokenIds])
    return text.slice(0, text.indexOf('<|im_start|>'))
  }
  const thought = { content: '', reasoning_content: 'I wonder' }
  const END = '\n</think>\n\n<|im_end|>\n'
  t.equal(await getTextAfter(qwen3, '<think>\nI wonder', thought), END)
  t.equal(await getTextAfter(qwen3, '<think>\nI wonder\n', thought), END.slice(1), 'with one line break')
  t.equal(await getTextAfter(opened, 'I wonder', thought), '</think><|im_end|>\n', 'as its parser reads it')
  const message = { content: 'One', reasoning_content: 'I wonder' }
  t.equal(await getTextAfter(qwen3, '<think>\nI wonder\n</think>\n\nOne', message), '<|im_end|>\n')
})

t.test('a truncated response that mentions the marker of reasoning stays content', async (t) => {
  const qwen3 = loadTokenModel('qwen3') as TokenModel
  const thought = '<think>\nI count.\n</think>\n\n'
  const texts = ['Write <think> be-', 'fore <think> it-', '<think> here.', 'Yes.']
  const responses = texts.map((text, index) => ({
    text: index === 0 ? thought + text : text,
    isCut: text.endsWith('-'),
  }))
  const { sendRequest } = await createTokenModeRig(t, qwen3, () => responses.shift()!)
  let turn = await sendRequest([user])
  let content = texts[0]!
  for (const text of texts.slice(1, 3)) {
    const next = await sendRequest([user, assistantMessage(content)], CONTINUED)
    t.match(getPrompt(next), { reason: 'extended', from: turn.turnId })
    t.match(next, { completionText: text, reasoning: null })
    content += text
    turn = next
  }
  const last = await sendRequest([user, assistantMessage(content), user])
  t.match(getPrompt(last), { reason: 'extended', from: turn.turnId })
  t.ok(qwen3.tokenizer.decode(last.promptTokenIds).includes(`${thought}${content}<|im_end|>\n`))
})

t.test('a truncated message is closed by the state of all its completions', async (t) => {
  const qwen3 = loadTokenModel('qwen3') as TokenModel
  const getPromptAfter = async (first: string, second: string, [echo, longer]: [object, object]) => {
    const responses = [first, second, 'Yes.'].map((text) => ({ text, isCut: text.endsWith('-') }))
    const { sendRequest } = await createTokenModeRig(t, qwen3, () => responses.shift()!)
    await sendRequest([user])
    await sendRequest([user, { role: 'assistant', content: '', ...echo }], CONTINUED)
    const next = await sendRequest([user, { role: 'assistant', content: '', ...longer }, user])
    t.match(getPrompt(next), { reason: 'extended' })
    return qwen3.tokenizer.decode(next.promptTokenIds)
  }
  const long = `I wonder${' a lot'.repeat(20)} -`
  const echo = { reasoning_content: long }
  const reasoned = await getPromptAfter(`<think>\n${long}`, ' why <think> -', [echo, {}])
  t.ok(reasoned.includes('why <think> -\n</think>\n\n<|im_end|>\n'))
  const cut = 'Write <think> -'
  const written = await getPromptAfter(cut, '<think> here -', [
    { content: cut },
    { content: `${cut}<think> here -` },
  ])
  t.ok(written.includes(`${cut}<think> here -<|im_end|>\n`))
})

/** As in GLM, the token that starts the next message ends the turn, and there is one for each role. */
const [USER_START, ASSISTANT_START, TOOL_START] = ['<|box_start|>', '<|quad_start|>', '<|box_end|>']
const OPENERS_END_TURNS = `{%- for m in messages %}
{%- if m.role == 'user' %}${USER_START}
{{ m.content }}
{%- elif m.role == 'tool' %}${TOOL_START}
<tool_response>{{ m.content }}</tool_response>
{%- else %}${ASSISTANT_START}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{%- endif %}{% endfor %}{% if add_generation_prompt %}${ASSISTANT_START}
{% endif %}`

t.test("an end of turn that differs from the next message's is replaced in one row, untrained", async (t) => {
  const { tokenizer } = model
  const [userStart, toolStart] = [tokenizer.tokenToId(USER_START)!, tokenizer.tokenToId(TOOL_START)!]
  const eosTokenIds = [userStart, toolStart, tokenizer.tokenToId('<|endoftext|>')!]
  const ends = { source: OPENERS_END_TURNS, eosTokenIds }
  const renderer = createRenderer(createTemplate(OPENERS_END_TURNS), tokenizer, ends)
  const glm = { ...model, renderer, ...ends } as TokenModel
  const text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
  for (const endId of eosTokenIds) {
    const responses = [
      { text, endId },
      { text: 'Done.', endId: userStart },
      { text: 'Yes.', endId: userStart },
    ]
    const { sendRequest, store } = await createTokenModeRig(t, glm, () => responses.shift()!)
    const call = await sendRequest([user], { tools: TOOLS })
    const toolCalls = JSON.parse(call.toolCalls!)
    const echo = { role: 'assistant', content: '', tool_calls: toolCalls } as ChatMessage
    const result = { role: 'tool', tool_call_id: toolCalls[0].id, content: '42' } as ChatMessage
    const next = await sendRequest([user, echo, result], { tools: TOOLS })
    await sendRequest([user, echo, result, assistantMessage('Done.'), user], { tools: TOOLS })
    const sampled = [...call.promptTokenIds, ...call.completionTokenIds]
    const isReplaced = endId !== toolStart
    t.match(getPrompt(next), {
      reason: 'extended',
      from: call.turnId,
      reused_tokens: sampled.length - Number(isReplaced),
      replaced_tokens: isReplaced ? 1 : undefined,
    })
    const { ids } = await renderer.renderFull([user, echo, result], { tools: TOOLS })
    t.strictSame([...next.promptTokenIds], [...ids], 'the prompt is that of the template')
    const builder = new TrajectoryBuilder()
    for await (const step of store.readSteps('s')) builder.add(step)
    const rows = [...builder.assembleRows({}, null)]
    t.equal(rows.length, 1)
    const { response_ids, response_mask, turns, num_turns } = rows[0]!
    t.equal(num_turns, 3)
    const trainedIds = isReplaced ? call.completionTokenIds.subarray(0, -1) : call.completionTokenIds
    t.strictSame([...response_ids.subarray(turns[0]!.start, turns[0]!.end)], [...trainedIds])
    t.strictSame(
      [...response_mask.subarray(0, trainedIds.length + 1)],
      [...trainedIds.map(() => 1), 0],
      'the replacement is not trained',
    )
    t.equal(response_ids[trainedIds.length], isReplaced ? toolStart : tokenizer.encode('\n')[0])
    const perTurn = [...builder.assembleRows({ perTurn: true }, null)]
    t.strictSame(
      perTurn.map(({ response_ids: own }) => [...own]),
      (await Array.fromAsync(store.readTurns('s'))).map((turn) => [...turn.completionTokenIds]),
      'a row of one turn has all its sampled tokens',
    )
    const traces = await Array.fromAsync(readTraces(store, 's', {}))
    t.strictSame(
      traces.map(({ lineage }) => lineage.parent !== null),
      [false, !isReplaced, true],
      'a trace is a suffix of complete tokens only',
    )
  }
})

t.test('a completion whose end one row replaces is trained up to its end in another', async (t) => {
  const { tokenizer } = model
  const [userStart, toolStart] = [tokenizer.tokenToId(USER_START)!, tokenizer.tokenToId(TOOL_START)!]
  const ends = { source: OPENERS_END_TURNS, eosTokenIds: [userStart, toolStart] }
  const renderer = createRenderer(createTemplate(OPENERS_END_TURNS), tokenizer, ends)
  const glm = { ...model, renderer, ...ends } as TokenModel
  const { sendRequest, store } = await createTokenModeRig(t, glm, () => ({ text: 'One.', endId: userStart }))
  const first = await sendRequest([user])
  const result = { role: 'tool', tool_call_id: 'x', content: '42' } as ChatMessage
  await sendRequest([user, assistantMessage('One.'), result])
  await sendRequest([user, assistantMessage('One.'), user])
  const builder = new TrajectoryBuilder()
  for await (const step of store.readSteps('s')) builder.add(step)
  const rows = [...builder.assembleRows({}, null)]
  const length = first.completionTokenIds.length
  t.match(
    rows.map(({ turns: [turn] }) => turn),
    [
      { start: 0, end: length - 1, trained: false },
      { start: 0, end: length, trained: true },
    ],
  )
  const forest = new Forest()
  for (const row of rows) forest.add('s', row)
  const { nodes, rows: created } = forest.createLayout()
  const layout = [...created]
  for (const [index, row] of rows.entries()) {
    const path: number[][] = []
    for (let at = layout[index]!.leaf; at !== null; at = nodes[at]!.parent) path.unshift([...nodes[at]!.ids])
    t.strictSame(path.flat(), [...row.prompt_ids, ...row.response_ids])
  }
})
