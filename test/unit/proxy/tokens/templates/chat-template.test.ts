import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { readChatTemplate } from '../../../../../src/proxy/tokens/templates/chat-template.ts'
import { createTemplate, loadTemplate } from '../../../../helpers/templates.ts'
import { modelDirectory, REAL_MODELS, readFixture } from '../real-models.ts'

for (const model of REAL_MODELS) {
  t.test(`${model}: prompts equal those of transformers`, async (t) => {
    const fixture = readFixture(model)
    const { template } = loadTemplate(modelDirectory(model))
    const now = new Date(fixture.now)
    for (const { name, messages, text, error, ...options } of fixture.templates) {
      const render = () => template.render(messages, { ...options, now })
      if (error === undefined) t.equal(render(), text, name)
      else t.throws(render, getRejection(error), `${name}: rejected with the template's own message`)
    }
  })
}

function getRejection(message: string) {
  const escaped = message.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  return { name: 'ProxyError', code: 'invalid_request', status: 400, message: new RegExp(escaped) }
}

const HI: ChatMessage[] = [{ role: 'user', content: 'Hi' }]
const SHOW_MESSAGES = '{% for m in messages %}{{ m | tojson }}{% endfor %}'

function show(messages: ChatMessage[], template = SHOW_MESSAGES): unknown {
  return JSON.parse(createTemplate(template).render(messages))
}

function createToolCallMessage(writtenArguments: string): ChatMessage {
  const call = { id: 'c', type: 'function' as const, function: { name: 'f', arguments: writtenArguments } }
  return { role: 'assistant', content: null, tool_calls: [call] }
}

t.test('arguments are objects for the template, in the order in which the model wrote them', async (t) => {
  const shown = createTemplate(SHOW_MESSAGES).render([createToolCallMessage('{"b":1,"a":"é<"}')])
  t.match(shown, '"arguments": {"b": 1, "a": "é<"}')
  t.match(createTemplate(SHOW_MESSAGES).render([createToolCallMessage('')]), '"arguments": {}')
})

t.test('arguments that are not an object stay text', async (t) => {
  for (const written of ['{"a": ', '5', 'null', '"x"']) {
    t.match(show([createToolCallMessage(written)]), { tool_calls: [{ function: { arguments: written } }] })
  }
})

t.test('rendering does not change the messages', async (t) => {
  const message = createToolCallMessage('{"a":1}')
  const before = structuredClone(message)
  show([message])
  t.same(message, before)
})

t.test('null fields and empty lists of tool calls look absent', async (t) => {
  const message = { role: 'assistant', content: null, refusal: null, tool_calls: [], reasoning_content: null }
  t.same(show([message as unknown as ChatMessage]), { role: 'assistant', content: '' })
})

t.test('reasoning is available under all of its names', async (t) => {
  const expected = {
    role: 'assistant',
    content: '',
    reasoning_content: 'hm',
    thinking: 'hm',
    reasoning: 'hm',
  }
  t.same(show([{ role: 'assistant', reasoning_content: 'hm' }]), expected)
  t.same(show([{ role: 'assistant', reasoning: 'hm' } as ChatMessage]), expected)
})

const CALLS_AS_TEXT =
  '{% for m in messages if m.tool_calls and m.content is none %}' +
  "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments + '|' }}{% endfor %}{% endfor %}"

t.test(
  'a template that needs arguments as text and null beside tool calls receives them in that form',
  async (t) => {
    const template = createTemplate(CALLS_AS_TEXT)
    const calls = ['{"b":1.0, "a": 2}', '', '{"cut": '].map(createToolCallMessage)
    t.equal(template.render(calls), 'f{"b":1.0, "a": 2}|f{}|f{"cut": |')
    t.equal(
      template.render([{ ...createToolCallMessage('{}'), content: '' }]),
      'f{}|',
      'empty text is not text',
    )
    t.equal(template.render([{ ...createToolCallMessage('{}'), content: 'text' }]), '')
  },
)

t.test('values behave as in Python', async (t) => {
  const show = (source: string) => createTemplate(source).render(HI)
  t.equal(show('{{ none|string }}{{ false|string }}{{ [none, "a", 1.0] }}'), "NoneFalse[None, 'a', 1.0]")
  t.equal(show("{{ 'xaxx'.strip('x') }}{{ '\\n\\n b'.lstrip('\\n') }}"), 'a b')
  t.throws(() => show("{{ 'x' + messages[0] }}"), getRejection('can only concatenate str'))
})

t.test('numbers and the order of keys are those of the received JSON', async (t) => {
  const schema = '{"b":{"default":null},"2":1000.0,"1":1e-9,"big":12345678901234567890,"yes":true}'
  const tools = `[{"type":"function","function":{"name":"f","parameters":${schema}}}]`
  t.equal(
    createTemplate('{{ tools[0].function.parameters | tojson }}').render(HI, { tools }),
    '{"b": {"default": null}, "2": 1000.0, "1": 1e-09, "big": 12345678901234567890, "yes": true}',
  )
  const called = JSON.stringify(createToolCallMessage('{"x":1.50,"y":[2.0]}'))
  t.match(createTemplate(SHOW_MESSAGES).render([called]), '{"x": 1.5, "y": [2.0]}')
})

t.test('a template has access only to its variables', async (t) => {
  const escapes = [
    '{{ messages.__class__.__mro__ }}',
    "{{ ''.__class__ }}",
    '{{ namespace(_x=1) }}',
    "{% set _ = messages.append('x') %}",
    '{{ dict.__init__.__globals__ }}',
  ]
  for (const source of escapes) {
    const render = () => createTemplate(source).render(HI)
    try {
      t.equal(render(), '', source)
    } catch (error) {
      t.match(error, { code: 'invalid_request' }, source)
    }
  }
})

t.test(
  'a template may read an attribute of a type each time, and no other attribute of another type',
  async (t) => {
    const source =
      '{% set own = namespace(append=1) %}{% for at in [1, 2] %}' +
      '{{ messages.append is defined }} {{ own.append }} {{ messages.__class__ is defined }} {% endfor %}'
    t.equal(createTemplate(source).render(HI), 'False 1 False False 1 False ')
  },
)

t.test(
  'a method of dictionaries shadows a field of its name, and an absent field is undefined',
  async (t) => {
    const message = { role: 'user', content: 'Hi', items: 'mine', more: 'yours' } as ChatMessage
    const source =
      '{% set m = messages[0] %}{{ m.items is string }} {{ m["items"] }} {{ m.more }} {{ m.nothing is defined }}'
    t.equal(createTemplate(source).render([message]), 'False mine yours False')
  },
)

t.test('a block that marks trained parts of a conversation renders its content', async (t) => {
  const source = '{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}'
  t.equal(createTemplate(source).render(HI), 'Hi')
})

t.test('text parts become one text, unless the template iterates over them', async (t) => {
  const parts: ChatMessage[] = [
    {
      role: 'user',
      content: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'b' },
      ],
    },
  ]
  t.same(show(parts), { role: 'user', content: 'a\nb' })
  const loops = [
    '{% for m in messages %}{% for part in m.content %}{{ part.text }},{% endfor %}{% endfor %}',
    "{% for m in messages %}{% for part in m['content'] | list %}{{ part.text }},{% endfor %}{% endfor %}",
    '{% for m in messages %}{% set c = m.content %}{% for part in c[0:] %}{{ part.text }},{% endfor %}{% endfor %}',
    '{% macro show(content) %}{% for part in content if part.text %}{{ part.text }},{% endfor %}{% endmacro %}' +
      '{% for m in messages %}{{ show(m.content) }}{% endfor %}',
  ]
  for (const loop of loops) {
    t.equal(createTemplate(loop).render(parts), 'a,b,', loop)
    t.equal(createTemplate(loop).render(HI), 'Hi,', 'text is a list of one part then')
    t.equal(createTemplate(loop).render([{ role: 'assistant', content: null }]), '')
  }
})

const ONE_SYSTEM = {
  'drops the second':
    '{% if messages[0].role == "system" %}<{{ messages[0].content }}>{% endif %}' +
    '{% for m in messages if m.role == "user" %}{{ m.content }}{% endfor %}',
  'rejects the second':
    '{% for m in messages %}{% if m.role == "system" and not loop.first %}{{ raise_exception("at the beginning") }}{% endif %}' +
    '{% if m.role == "system" %}<{{ m.content }}>{% elif m.role == "user" %}{{ m.content }}{% endif %}{% endfor %}',
  'accepts parts only':
    '{% if messages[0].role == "system" %}<{% for part in messages[0].content %}{{ part.text }}{% endfor %}>{% endif %}' +
    '{% for m in messages if m.role == "user" %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}',
}

for (const [behavior, source] of Object.entries(ONE_SYSTEM)) {
  t.test(`a template that ${behavior} receives the first system messages as one`, async (t) => {
    const rule = (content: string): ChatMessage => ({ role: 'system', content })
    const developer: ChatMessage = { role: 'developer', content: 'c' }
    const template = createTemplate(source)
    t.equal(template.getRoles().developer, 'system')
    t.equal(template.render([rule('a'), rule('b'), developer, ...HI]), '<a\nb\nc>Hi')
    t.equal(template.render([rule('a'), ...HI]), '<a>Hi')
  })
}

const LATE_SYSTEM = {
  drops:
    '{% if messages[0].role == "system" %}<{{ messages[0].content }}>{% endif %}' +
    '{% for m in messages if m.role != "system" %}{{ m.role }}:{{ m.content }},{% endfor %}',
  rejects:
    '{% for m in messages %}{% if m.role == "system" %}{% if not loop.first %}{{ raise_exception("at the beginning") }}' +
    '{% endif %}<{{ m.content }}>{% else %}{{ m.role }}:{{ m.content }},{% endif %}{% endfor %}',
}

for (const [behavior, source] of Object.entries(LATE_SYSTEM)) {
  t.test(`a template that ${behavior} later system messages receives those of a user`, async (t) => {
    const rule = (content: string): ChatMessage => ({ role: 'system', content })
    const template = createTemplate(source)
    t.same(template.getRoles(), { developer: 'developer', later_system: 'user' })
    t.equal(template.render([rule('a'), ...HI, rule('b'), ...HI]), '<a>user:Hi,user:b,user:Hi,')
  })
}

t.test('a template that rejects two messages of a user in a row rejects later system messages', async (t) => {
  const template = createTemplate(
    '{% for m in messages %}{% if (m.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("alternate") }}' +
      '{% endif %}{{ m.content }}{% endfor %}',
  )
  t.equal(template.getRoles().later_system, 'system')
  t.throws(
    () => template.render([...HI, { role: 'assistant', content: '' }, { role: 'system', content: '' }]),
    {
      code: 'invalid_request',
    },
  )
})

t.test('a template that renders each system message receives them unchanged', async (t) => {
  const roles = '{% for m in messages %}{{ m.role }}:{{ m.content }},{% endfor %}'
  const rules: ChatMessage[] = [
    { role: 'system', content: 'a' },
    { role: 'system', content: 'b' },
  ]
  t.equal(createTemplate(roles).render([...rules, ...HI]), 'system:a,system:b,user:Hi,')
  const none = '{% for m in messages if m.role == "user" %}{{ m.content }}{% endfor %}'
  t.equal(
    createTemplate(none).render([...rules, ...HI]),
    'Hi',
    'without rendered ones there is nothing to join',
  )
})

t.test('text stays text, and one part becomes text, for a template that accepts both', async (t) => {
  const both =
    "{% for m in messages %}{% if m.content is string %}'{{ m.content }}'" +
    '{% else %}{% for part in m.content %}{{ part.text }},{% endfor %}{% endif %}{% endfor %}'
  const part = (text: string) => ({ type: 'text' as const, text })
  const template = createTemplate(both)
  t.equal(template.render(HI), "'Hi'")
  t.equal(template.render([{ role: 'user', content: [part('Hi')] }]), "'Hi'")
  t.equal(template.render([{ role: 'user', content: [part('a'), part('b')] }]), 'a,b,')
})

t.test('content other than text is rejected with its position', async (t) => {
  const image: ChatMessage[] = [
    { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] },
  ]
  t.throws(() => show(image), { code: 'unsupported', param: 'messages.0.content.0', message: /image_url/ })
})

t.test('special tokens, extra variables and the date reach the template', async (t) => {
  const source =
    '{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}|{{ mode }}|{{ strftime_now("%d %b %Y") }}'
  const template = createTemplate(source, {
    bos_token: '<s>',
    eos_token: { content: '</s>' },
    unk_token: null,
  })
  const now = new Date(2026, 9, 5)
  t.equal(template.render(HI, { kwargs: { mode: 'x' }, now }), '<s>|</s>|False|x|05 Oct 2026')
  const overridden = { bos_token: 'B', strftime_now: 'never' }
  t.match(createTemplate('{{ bos_token }}{{ strftime_now }}').render(HI, { kwargs: overridden }), 'Bnever')
})

t.test('extra variables cannot replace the request itself', async (t) => {
  t.equal(createTemplate('{{ messages[0].content }}').render(HI, { kwargs: { messages: [] } }), 'Hi')
})

t.test('a generation prompt is added unless it is declined', async (t) => {
  const template = createTemplate('{{ add_generation_prompt }}|{{ tools is none }}|{{ documents is none }}')
  t.equal(template.render(HI), 'True|True|True')
  t.equal(
    template.render(HI, { addGenerationPrompt: false, tools: [], documents: ['d'] }),
    'False|False|False',
  )
})

t.test('white space around blocks is that of transformers', async (t) => {
  t.equal(
    createTemplate('a\n  {% if true %}\nb\n  {% endif %}\n{{ range(3) | join }}c\n').render(HI),
    'a\nb\n012c',
  )
})

t.test('loops support break and continue', async (t) => {
  const source =
    '{% for i in range(1, 9, 2) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 7 %}{% break %}{% endif %}{{ i }}{% endfor %}'
  t.equal(createTemplate(source).render(HI), '15')
})

t.test('among several named templates, tool_use serves requests with tools', async (t) => {
  const named = [
    { name: 'default', template: 'plain' },
    { name: 'tool_use', template: 'tools' },
    { name: 'rag', template: 'rag' },
  ]
  const template = createTemplate(named)
  t.equal(template.render(HI), 'plain')
  t.equal(template.render(HI, { tools: [{ type: 'function', function: { name: 'f' } }] }), 'tools')
  t.equal(createTemplate(named.slice(0, 1)).render(HI, { tools: [] }), 'plain')
  t.throws(() => createTemplate(named.slice(2)), { code: 'config_invalid', message: /default/ })
})

t.test('a template that is not valid Jinja is rejected when it is loaded', async (t) => {
  t.throws(() => createTemplate('{% if %}'), { code: 'config_invalid', message: /chat template/ })
})

t.test('a template that fails on a request rejects the request', async (t) => {
  t.throws(
    () => createTemplate('{{ raise_exception("No " ~ messages[0].role) }}').render(HI),
    getRejection('No user'),
  )
  t.throws(() => createTemplate('{{ messages[0].content.x.y() }}').render(HI), { code: 'invalid_request' })
})

t.test(
  "a model's own template is found at every location that transformers reads, in its order",
  async (t) => {
    const config = { chat_template: 'from config' }
    const directory = t.testdir({
      all: { 'chat_template.jinja': 'from jinja', 'chat_template.json': '{"chat_template": "from json"}' },
      json: { 'chat_template.json': '{"chat_template": "from json"}' },
      none: {},
      broken: { 'chat_template.json': '{' },
    })
    t.equal(readChatTemplate(`${directory}/all`, config)?.plain, 'from jinja')
    t.equal(readChatTemplate(`${directory}/json`, config)?.plain, 'from json')
    t.equal(readChatTemplate(`${directory}/none`, config)?.plain, 'from config')
    t.equal(readChatTemplate(`${directory}/none`, {}), undefined)
    t.throws(() => readChatTemplate(`${directory}/broken`, {}), {
      code: 'config_invalid',
      message: /chat_template\.json/,
    })
  },
)
