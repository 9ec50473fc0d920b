import { readFileSync } from 'node:fs'
import t from 'tap'
import type { ChatMessage, Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type {
  Continuation,
  ContinuationRequest,
  PromptOptions,
  PromptRenderer,
  PromptRendererOptions,
} from '../../../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import { TEMPLATE_REJECTIONS } from '../../../../../src/proxy/tokens/prompt/template-rejection.ts'
import {
  ChatTemplate,
  getChatTemplateFiles,
} from '../../../../../src/proxy/tokens/templates/chat-template.ts'
import { PythonTemplates } from '../../../../../src/proxy/tokens/templates/python/python-templates.ts'
import { createRenderer, createTemplate, createUnspecializedRenderer } from '../../../../helpers/templates.ts'
import { TOOLS } from '../prompt-conversations.ts'
import { loadModel } from '../prompt-rollout.ts'

const { tokenizer, source: embedded } = loadModel('embedded')
const END = tokenizer.tokenToId('<|im_end|>')!

const QUESTION: ChatMessage = { role: 'user', content: 'What?' }
const COMPLETION: ChatMessage = { role: 'assistant', content: 'That.' }
const SYSTEM: ChatMessage = { role: 'system', content: 'Be nice.' }
const CALL: ChatMessage = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'c1', type: 'function', function: { name: 'bash', arguments: '{"a":1}' } }],
}
const RESULT: ChatMessage = { role: 'tool', tool_call_id: 'c1', content: 'done' }

const end = (history: ChatMessage[], ...newMessages: ChatMessage[]): ContinuationRequest => ({
  history,
  newMessages,
  lastCompletionId: END,
})
const NEXT_QUESTION = end([QUESTION, COMPLETION], QUESTION)

const chatMl = (loop: string, head = '') =>
  `${head}{% for m in messages %}${loop}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}`
const MESSAGE = '<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n'

function getRenderer(source: string, options: Partial<PromptRendererOptions> = {}): PromptRenderer {
  return createRenderer(createTemplate(source), tokenizer, { source, ...options })
}

async function renderAccepted(
  renderer: PromptRenderer,
  request: ContinuationRequest,
  options?: PromptOptions,
): Promise<Continuation> {
  const continuation = await renderer.renderContinuation(request, options)
  if ('refused' in continuation) throw new Error(continuation.refused)
  return continuation
}

t.test('the new part is the separator, the new messages and the generation prompt', async (t) => {
  const { bridgeIds, newIds, text } = await renderAccepted(getRenderer(chatMl(MESSAGE)), NEXT_QUESTION)
  t.equal(text, '\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n')
  t.equal(tokenizer.decode(newIds), text)
  t.same(bridgeIds, [])
})

t.test('where tools stand before the last user message, an equal message changes no history', async (t) => {
  // As in Mistral's template, which compares messages by their content.
  const users = "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
  const loop = `{% if tools and m == users[-1] %}[TOOLS]{{ tools | tojson }}{% endif %}${MESSAGE}`
  const renderer = getRenderer(chatMl(loop, users))
  const other: ChatMessage = { role: 'user', content: 'And then?' }
  const renderWithTools = (request: ContinuationRequest) =>
    renderer.renderContinuation(request, { tools: TOOLS })
  const text = /^\n\[TOOLS\].*"bash".*<\|im_start\|>user\nWhat\?<\|im_end\|>\n<\|im_start\|>assistant\n$/s
  for (let count = 0; count < 3; count += 1) {
    t.match(await renderWithTools(NEXT_QUESTION), { text })
    t.same(await renderWithTools(end([QUESTION, COMPLETION], other)), { refused: 'past_changes' })
    const between = [QUESTION, COMPLETION, other, COMPLETION]
    t.same(
      await renderWithTools(end(between, QUESTION)),
      { refused: 'past_changes' },
      'the message between loses the tools',
    )
  }
})

t.test(
  'a template that rejects text beside reasoning and tool calls continues a history with each',
  async (t) => {
    // As in gpt-oss's template. In a history that is longer than the dummy one, consecutive messages are
    // rendered as one.
    const rejectBoth =
      "{% if m.tool_calls and m.content and m.reasoning_content %}{{ raise_exception('not both') }}{% endif %}"
    const calls =
      '{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}'
    const body = "{{ m.reasoning_content or '' }}{{ m.content or '' }}"
    const renderer = getRenderer(chatMl(`${rejectBoth}<|im_start|>{{ m.role }}\n${body}${calls}<|im_end|>\n`))
    const withText = { ...CALL, content: 'I look.' }
    const withReasoning = { ...CALL, reasoning_content: 'Look?' }
    const history = [QUESTION, withText, RESULT, withReasoning, RESULT, QUESTION]
    for (const last of [COMPLETION, CALL, withText]) {
      const next = last === COMPLETION ? QUESTION : RESULT
      t.match(await renderAccepted(renderer, end([...history, last], next), { tools: TOOLS }), {
        newIds: Object,
      })
    }
  },
)

t.test('a completion that did not end its turn is ended, for any last token', async (t) => {
  const renderer = getRenderer(chatMl(MESSAGE), { eosTokenIds: [7] })
  const getBridgeIds = async (lastCompletionId: number | undefined) =>
    (await renderAccepted(renderer, { ...NEXT_QUESTION, lastCompletionId })).bridgeIds
  t.same(await getBridgeIds(42), [END])
  t.same(await getBridgeIds(undefined), [END], 'nothing was sampled')
  t.same(await getBridgeIds(END), [])
  t.same(await getBridgeIds(7), [], "another of the model's ids that end a turn is kept as sampled")
})

t.test(
  'once a template signature is verified, no part of the history is rendered or tokenized again',
  async (t) => {
    let rendered = 0
    let encoded = 0
    class CountingTemplate extends ChatTemplate {
      override render(...args: Parameters<ChatTemplate['render']>): string {
        const text = super.render(...args)
        rendered += text.length
        return text
      }
    }
    const encode = (text: string) => {
      encoded += text.length
      return tokenizer.encode(text)
    }
    const template = new CountingTemplate(await PythonTemplates.start(), getChatTemplateFiles(embedded))
    const renderer = createUnspecializedRenderer(template, tokenizer, { source: embedded, encode })
    const getCost = async (turns: number, tools: Tool[]) => {
      const history = Array.from({ length: turns }, () => [QUESTION, CALL, RESULT, COMPLETION]).flat()
      rendered = encoded = 0
      await renderAccepted(renderer, end(history, QUESTION), { tools })
      return { rendered, encoded }
    }
    await getCost(10, TOOLS)
    await getCost(10, TOOLS)
    const cost = await getCost(10, TOOLS)
    t.ok(cost.encoded > 0 && cost.encoded < cost.rendered)
    const verification = await getCost(5000, TOOLS)
    t.ok(verification.rendered > 100 * cost.rendered, 'the fourth history of a signature is verified again')
    t.same(await getCost(5000, TOOLS), cost)
    t.same(await getCost(10, [...TOOLS, ...TOOLS]), cost, 'nor are the tools')
  },
)

t.test('long texts can be tokenized in another thread', async (t) => {
  const renderer = getRenderer(chatMl(MESSAGE), { encode: async (text) => tokenizer.encode(text) })
  t.same(
    await renderer.renderContinuation(NEXT_QUESTION),
    await renderAccepted(getRenderer(chatMl(MESSAGE)), NEXT_QUESTION),
  )
  const prompt = await renderer.renderFull([QUESTION])
  t.same(prompt.ids, tokenizer.encode(prompt.text))
})

t.test('where no dummy history represents the complete one, the complete one is rendered', async (t) => {
  const renderer = getRenderer(chatMl(`{{ loop.index }}${MESSAGE}`))
  const long = Array.from({ length: 15 }, () => [QUESTION, COMPLETION]).flat()
  for (const _ of [1, 2, 3]) {
    t.equal((await renderAccepted(renderer, end(long, QUESTION))).text, getExpectedText(31))
    t.equal((await renderAccepted(renderer, NEXT_QUESTION)).text, getExpectedText(3))
  }
  function getExpectedText(number: number): string {
    return `\n${number}<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n`
  }
})

/** Tests a text in the forms that published templates use. */
const SWITCHES = {
  'in a text': '"/no_think" in messages[0].content',
  'at its end': 'messages[0].content.endswith("/no_think")',
  'in small letters': '"/no_think" in messages[0].content.lower()',
  'to cut it out': '(messages[0].content | replace("/no_think", "")) != messages[0].content',
  'as the whole text': 'messages[0].content | trim == "quiet"',
  'by a name': 'word in messages[0].content',
  "in the model's text": '"/no_think" in messages[1].content',
}

for (const [form, condition] of Object.entries(SWITCHES)) {
  t.test(`a template that searches for a word ${form} receives each text that contains it`, async (t) => {
    const named = '{% set word = "/no_think" %}'
    const ending = `{% if ${condition} %}<think></think>{% endif %}`
    const renderer = getRenderer(chatMl(MESSAGE, named) + ending)
    const quoted = form === 'as the whole text' ? ' quiet\n' : 'Be brief. /NO_THINK /no_think'
    const inCompletion = form === "in the model's text"
    const quiet: ChatMessage[] = [
      inCompletion ? QUESTION : { role: 'user', content: quoted },
      inCompletion ? { role: 'assistant', content: quoted } : COMPLETION,
    ]
    for (const past of [
      [QUESTION, COMPLETION],
      [QUESTION, COMPLETION],
      quiet,
      [QUESTION, COMPLETION],
      quiet,
    ]) {
      const { text } = await renderAccepted(renderer, end(past, QUESTION))
      const full = await renderer.renderFull([...past, QUESTION])
      t.ok(full.text.endsWith(`assistant\n${past === quiet ? '<think></think>' : ''}`), full.text)
      t.ok(full.text.endsWith(text), `${text} of ${full.text}`)
    }
  })
}

t.test('a word that changes the rendered history is rejected', async (t) => {
  const renderer = getRenderer(chatMl(`{% if "/quiet" in messages[-1].content %}hush{% endif %}${MESSAGE}`))
  const shown: ChatMessage = { role: 'user', content: 'What does /quiet do?' }
  t.match(await renderer.renderContinuation(end([shown, COMPLETION], QUESTION)), { text: /What/ })
  t.same(await renderer.renderContinuation(end([shown, COMPLETION], shown)), { refused: 'past_changes' })
})

t.test('one template signature that needs the complete history leaves others unchanged', async (t) => {
  const counting = `{% if m.role == "tool" %}{{ loop.index }}{% endif %}${MESSAGE}`
  const renderer = getRenderer(chatMl(counting))
  const long = Array.from({ length: 5 }, () => [QUESTION, COMPLETION]).flat()
  for (const _ of [1, 2, 3]) {
    t.match(await renderAccepted(renderer, end([...long, QUESTION, CALL], RESULT)), {
      text: /13<.im_start.>tool\ndone/,
    })
    t.match(await renderAccepted(renderer, end(long, QUESTION)), { text: /^\n<.im_start.>user\nWhat/ })
  }
})

t.test('text, reasoning and tool calls of one message may be in any order', async (t) => {
  const parts = [
    '{{ m.reasoning_content or "" }}',
    '{{ m.content or "" }}',
    '{{ m.tool_calls | default([]) | tojson }}',
  ]
  const assistantMessage: ChatMessage = {
    ...CALL,
    content: 'I look.',
    reasoning_content: 'Hm.',
  } as ChatMessage
  for (const order of [parts, parts.toReversed(), [parts[1], parts[0], parts[2]]]) {
    const renderer = getRenderer(chatMl(`<|im_start|>{{ m.role }}\n${order.join('')}<|im_end|>\n`))
    const { text } = await renderAccepted(renderer, end([QUESTION, assistantMessage], RESULT))
    t.match(text, /^\n<\|im_start\|>tool\n/, String(order))
  }
})

t.test('reasoning that a template omits from an older history does not change it', async (t) => {
  const latest =
    '{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}'
  const thought =
    '{% if m.role == "assistant" and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}'
  const renderer = getRenderer(
    chatMl(`<|im_start|>{{ m.role }}\n${thought}{{ m.content }}<|im_end|>\n`, latest),
  )
  const reasoned: ChatMessage = { ...CALL, reasoning_content: 'Hm.' }
  t.match(await renderAccepted(renderer, end([QUESTION, reasoned, RESULT, COMPLETION], QUESTION)), {
    text: /What/,
  })
  t.match(await renderAccepted(renderer, end([QUESTION, CALL, RESULT, COMPLETION], QUESTION)), {
    text: /What/,
  })
})

t.test('a template that ends messages only with text is rejected', async (t) => {
  const renderer = getRenderer('{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:')
  t.same(await renderer.renderContinuation(NEXT_QUESTION), { refused: 'no_end_of_turn' })
  const rejecting = getRenderer('{{ raise_exception("never") }}')
  t.same(await rejecting.renderContinuation(NEXT_QUESTION), { refused: 'no_end_of_turn' })
})

t.test(
  'tools that move to the last question change the history; without tools, and after a result, they do not',
  async (t) => {
    const lastUser =
      '{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}'
    const renderer = getRenderer(
      chatMl(
        `{% if tools and loop.index0 == ns.last %}[{{ tools | tojson }}]{% endif %}${MESSAGE}`,
        lastUser,
      ),
    )
    t.same(await renderer.renderContinuation(NEXT_QUESTION, { tools: TOOLS }), { refused: 'past_changes' })
    t.match(await renderer.renderContinuation(NEXT_QUESTION), { text: /What/ })
    t.match(await renderer.renderContinuation(end([QUESTION, CALL], RESULT), { tools: TOOLS }), {
      text: /done/,
    })
  },
)

const TOOL_NAMED_BY_CALL =
  '{% if m.tool_calls %}{% set call = m.tool_calls[0] %}<|im_start|>{{ call.function.name }} {{ call.function.arguments | tojson }}<|im_end|>\n' +
  '{% elif m.role == "tool" %}<|im_start|>{{ messages[loop.index0 - 1].tool_calls[0].function.name }}\n{{ m.content }}<|im_end|>\n' +
  `{% else %}${MESSAGE}{% endif %}`

t.test('a template that names a result by its tool call receives the real tool call', async (t) => {
  const alternating =
    '{% for m in messages %}{% if m.role == "tool" and not messages[loop.index0 - 1].tool_calls %}' +
    '{{ raise_exception("a result without a call") }}{% endif %}{% endfor %}'
  const renderer = getRenderer(chatMl(TOOL_NAMED_BY_CALL, alternating))
  const { text } = await renderAccepted(renderer, end([QUESTION, CALL], RESULT))
  t.equal(text, '\n<|im_start|>bash\ndone<|im_end|>\n<|im_start|>assistant\n')
})

/**
 * Counts the renders for each of several tool calls of one signature, after those that verify the signature.
 */
async function countRenders(source: string): Promise<number[]> {
  const template = createTemplate(source)
  const render = template.render.bind(template)
  let renders = 0
  template.render = (...args) => {
    renders += 1
    return render(...args)
  }
  const renderer = createUnspecializedRenderer(template, tokenizer, { source })
  const counts: number[] = []
  for (let number = 1; number <= 7; number += 1) {
    renders = 0
    const toolFunction = { name: 'bash', arguments: '{"a":1}' }
    const toolCalls = [{ id: `call-${number}`, type: 'function' as const, function: toolFunction }]
    const call: ChatMessage = { role: 'assistant', content: null, tool_calls: toolCalls }
    const result: ChatMessage = { role: 'tool', tool_call_id: `call-${number}`, content: `done ${number}` }
    const { text } = await renderAccepted(renderer, end([QUESTION, call], result))
    t.match(text, `done ${number}`)
    counts.push(renders)
  }
  return counts.slice(4)
}

t.test(
  'a template that writes the id of a tool call after its arguments is continued, with any id',
  async (t) => {
    const calls = `{% for c in m.tool_calls %}{{ c.function.arguments }}, "id": "{{ c.id }}"{% endfor %}`
    const renderer = getRenderer(
      chatMl(`<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}${calls}{% endif %}<|im_end|>\n`),
    )
    for (const id of ['c1', 'call_22', 'x']) {
      const call = { ...CALL, tool_calls: [{ ...CALL.tool_calls![0]!, id }] } as ChatMessage
      const request = end([QUESTION, call], { ...RESULT, tool_call_id: id } as ChatMessage)
      const { text } = await renderAccepted(renderer, request, { tools: TOOLS })
      t.equal(text, '\n<|im_start|>tool\ndone<|im_end|>\n<|im_start|>assistant\n', id)
    }
  },
)

t.test(
  'the history of a signature is rendered separately once, unless it contains the ids of tool calls',
  async (t) => {
    t.same(await countRenders(chatMl(TOOL_NAMED_BY_CALL)), [1, 1, 1])
    const withIds = TOOL_NAMED_BY_CALL.replace('{{ call.function.name }}', '{{ call.id }}')
    t.same(await countRenders(chatMl(withIds)), [2, 2, 2])
  },
)

t.test('new messages that change the history are rejected at any position', async (t) => {
  const head = '{% if messages[-1].content == "Change it." %}Changed.{% endif %}'
  const renderer = getRenderer(chatMl(MESSAGE, head))
  const change: ChatMessage = { role: 'user', content: 'Change it.' }
  for (let round = 0; round < 4; round += 1) {
    t.match(await renderer.renderContinuation(NEXT_QUESTION), { text: /What/ })
    t.same(await renderer.renderContinuation(end([QUESTION, COMPLETION], change)), {
      refused: 'past_changes',
    })
  }
})

t.test('messages that the template rejects are rejected', async (t) => {
  const noTwoUsers =
    '{% for m in messages %}{% if not loop.first and m.role == "user" and messages[loop.index0 - 1].role == "user" %}' +
    '{{ raise_exception("twice") }}{% endif %}{% endfor %}'
  const renderer = getRenderer(chatMl(MESSAGE, noTwoUsers))
  t.match(await renderer.renderContinuation(NEXT_QUESTION), { text: /What/ })
  t.same(await renderer.renderContinuation(end([QUESTION, COMPLETION], QUESTION, QUESTION)), {
    refused: 'template_refuses',
  })
})

t.test('content other than text is rejected, and the full render names it', async (t) => {
  const image: ChatMessage = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] }
  const renderer = getRenderer(chatMl(MESSAGE))
  t.same(await renderer.renderContinuation(end([QUESTION, COMPLETION], image)), {
    refused: 'template_refuses',
  })
  await t.rejects(renderer.renderFull([QUESTION, COMPLETION, image]), {
    code: 'unsupported',
    param: 'messages.2.content.0',
  })
})

t.test('a system message after the history stays there, or moves and is rejected', async (t) => {
  const request = end([QUESTION, COMPLETION], SYSTEM, QUESTION)
  t.match(await getRenderer(chatMl(MESSAGE)).renderContinuation(request), { text: /system\nBe nice/ })
  const moving = '{% for m in messages if m.role == "system" %}{{ m.content }}{% endfor %}'
  const renderer = getRenderer(chatMl(`{% if m.role != "system" %}${MESSAGE}{% endif %}`, moving))
  t.same(await renderer.renderContinuation(request), { refused: 'past_changes' })
  t.match(await renderer.renderContinuation(NEXT_QUESTION), { text: /What/ })
})

const WITH_TOOL_CALLS =
  '<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|im_end|>\n'
const WITHOUT_END_OF_TURN = chatMl(
  '<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function | tojson }}]{% endfor %}',
)

t.test(
  'a template whose next message ends the last one continues from the token that opens it',
  async (t) => {
    const start = tokenizer.tokenToId('<|im_start|>')!
    const renderer = getRenderer(WITHOUT_END_OF_TURN, { eosTokenIds: [start] })
    const decodeAfter = async (lastCompletionId: number) => {
      const { bridgeIds, newIds } = await renderAccepted(renderer, {
        ...NEXT_QUESTION,
        lastCompletionId,
      })
      t.same(bridgeIds, [])
      return tokenizer.decode(newIds)
    }
    t.equal(await decodeAfter(start), 'user\nWhat?<|im_start|>assistant\n')
    t.equal(
      await decodeAfter(42),
      '<|im_start|>user\nWhat?<|im_start|>assistant\n',
      'the completion was truncated',
    )
    const other = await renderAccepted(renderer, NEXT_QUESTION)
    t.equal(other.replacedTokens, 1, 'another end of turn is replaced by the token that opens the message')
    t.equal(tokenizer.decode(other.newIds), '<|im_start|>user\nWhat?<|im_start|>assistant\n')
    const result = { ...end([QUESTION, CALL], RESULT), lastCompletionId: start }
    t.match(await renderer.renderContinuation(result), {
      text: /^<\|im_start\|>tool\ndone/,
      replacedTokens: 0,
    })
  },
)

t.test(
  'where a tool call must have a result before the user continues, its result is rendered',
  async (t) => {
    const strict =
      '{% for m in messages %}{% if m.role == "user" and not loop.first and messages[loop.index0 - 1].tool_calls %}' +
      '{{ raise_exception("no answer") }}{% endif %}{% endfor %}'
    const renderer = getRenderer(chatMl(WITH_TOOL_CALLS, strict))
    t.match(await renderer.renderContinuation(end([QUESTION, CALL], RESULT)), {
      text: /^\n<\|im_start\|>tool\ndone/,
    })
  },
)

t.test('a tokenizer that does not split at the end of the turn is rejected', async (t) => {
  for (const template of [chatMl(MESSAGE), WITHOUT_END_OF_TURN]) {
    for (const ids of [[1, 2, 3], []]) {
      const renderer = getRenderer(template, { encode: () => ids })
      t.same(await renderer.renderContinuation(NEXT_QUESTION), { refused: 'no_token_boundary' })
    }
  }
})

t.test('new messages may equal the dummy text', async (t) => {
  const texts = ['question', '<|im_end|>\n<|im_start|>user\nquestion']
  for (const content of texts) {
    const request = end([QUESTION, COMPLETION], { role: 'user', content })
    const continuation = await renderAccepted(getRenderer(embedded), request)
    t.equal(continuation.text, `\n<|im_start|>user\n${content}<|im_end|>\n<|im_start|>assistant\n`)
  }
})

t.test('a template that changes its output after a history was verified is detected', async (t) => {
  const renderer = getRenderer(chatMl(`{% if loop.index0 > 20 %}late {% endif %}${MESSAGE}`))
  const long = Array.from({ length: 15 }, () => [QUESTION, COMPLETION]).flat()
  t.match(await renderAccepted(renderer, end(long, QUESTION)), { text: /^\nlate / })
  t.match(await renderAccepted(renderer, NEXT_QUESTION), { text: /^\n<.im_start/ }, 'the same signature')
})

t.test('variables are those of the request, and signatures are verified for them', async (t) => {
  const thinking = '{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}'
  const renderer = getRenderer(
    `${chatMl(`{% if numbered %}{{ loop.index }}{% endif %}${MESSAGE}`)}${thinking}`,
  )
  t.match(await renderer.renderContinuation(NEXT_QUESTION, { kwargs: { enable_thinking: false } }), {
    text: /assistant\n<think><\/think>$/,
  })
  t.match(await renderer.renderContinuation(NEXT_QUESTION, { kwargs: { numbered: true } }), { text: /^\n3</ })
  t.match(await renderer.renderContinuation(NEXT_QUESTION), { text: /^\n</ })
})

t.test('a key distinguishes requests whose variables change the beginning of the prompt', async (t) => {
  const head =
    '{{ bos }}{% if date_string is not defined %}{% set date_string = strftime_now("%Y-%m-%d") %}{% endif %}' +
    '{% if tools %}{{ style }}{% endif %}{{ date_string }} {{ documents }}'
  const thinking = '{% if add_generation_prompt and enable_thinking %}<think>{% endif %}'
  const renderer = getRenderer(chatMl(MESSAGE, head) + thinking)
  const key = (kwargs: Record<string, unknown>, options: PromptOptions = {}) =>
    renderer.getVariablesKey({ kwargs, ...options })
  const assertSame = async (left: Promise<string>, right: Promise<string>, reason: string) =>
    t.equal(await left, await right, reason)
  const assertDiffers = async (left: Promise<string>, right: Promise<string>, reason = 'differs') =>
    t.not(await left, await right, reason)
  await assertSame(key({ unknown: 1 }), key({}), 'not mentioned')
  await assertSame(key({}, { now: new Date(0) }), key({}, { now: new Date() }), 'the date that passes')
  await assertSame(key({ enable_thinking: true }), key({}), 'the end of the prompt')
  await assertDiffers(key({ date_string: '1' }), key({ date_string: '2' }), 'the date that the agent gives')
  await assertDiffers(key({}, { documents: ['a'] }), key({}, { documents: ['b'] }))
  await assertSame(key({ style: 'a' }), key({ style: 'b' }), 'shown with tools only, and there are none')
  await assertDiffers(key({ style: 'a' }, { tools: TOOLS }), key({ style: 'b' }, { tools: TOOLS }))
})

t.test('the documentation names every reason for a rejection', async (t) => {
  const page = readFileSync(new URL('../../../../../docs/token-mode.md', import.meta.url), 'utf8')
  const named = [...page.matchAll(/^\| `([a-z_]+)` \|/gm)].map(([, reason]) => reason)
  t.same(
    named.filter((reason) => TEMPLATE_REJECTIONS.includes(reason as never)),
    TEMPLATE_REJECTIONS,
  )
})
