/** The code of a model's prompt encoder, specialized to the shape of messages, and the words that it searches for. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { type NewPart, PromptEngine } from '../../../../../src/proxy/tokens/prompt/prompt-engine.ts'
import {
  PromptSpecializer,
  type TemplateService,
} from '../../../../../src/proxy/tokens/prompt/prompt-specializer.ts'
import { createTemplateSignature } from '../../../../../src/proxy/tokens/prompt/template-signature.ts'
import { ChatTemplate, getEncoderFiles } from '../../../../../src/proxy/tokens/templates/chat-template.ts'
import { bootPython } from '../../../../../src/proxy/tokens/templates/python/boot.ts'
import { PythonTemplates } from '../../../../../src/proxy/tokens/templates/python/python-templates.ts'
import { fillSlots, splitContents } from '../../../../../src/proxy/tokens/templates/specialization.ts'

const CONTENTS = ['', 'a', 'b', ' a ', 'aba', '{"a": 1}', 'ab𝔸\n']

/** Bodies of functions of a content `c`, the list `l` of all contents, and the message `m`. */
const SPECIALIZED = [
  'return "<" + c + ">"',
  'return f"<{c}>{c!s}"',
  'return "<{}{x}>".format(c, x=c)',
  'return FRAME.format(content=c) + FRAME.format(content=1)',
  'return ", ".join([c, "x", *l])',
  'return "".join(x for x in l if x)',
  'return c.strip() + c.lstrip("a") + c.rstrip("\\n")',
  'return c or "none"',
  'return "A" if "a" in c else c',
  'return "A" if c.startswith(("a", "b")) else "B" if c == "1" else c',
  'return c if c in ["a", "b"] else "x" if c not in ("1", "2") else "y"',
  'return "A" if isinstance(c, str) and not isinstance(c, (list, dict)) else "B"',
  'return str(c) if type(c) is str else "B"',
  'return c if c is not None else "none"',
  'text = ""\n for x in l:\n  text += x\n return text',
  'copied = copy.deepcopy(m)\n copied["content"] = c + "!"\n return copied["content"] + copied.get("x", "y")',
  'return Part(c).text + Part.of(c).text + "".join(map(shown, [c]))',
  'return "same" if c == l[0] else c',
  'places = {}\n for x in l:\n  places[x] = len(places)\n return str(places.get(c, 9)) + str(places[c]) + str("a" in places)',
  'return ",".join(sorted(["b", "a"], key=lambda x: {"a": 1}.get(x, 0))) + c',
  'return json.dumps({"a": [1, None]}) + c',
  'return c[-2:] + ("A" if c[-2:] == l[0][-2:] else "B" if c[-1:] == "a" else "")',
  'return c if any([c]) else "none"',
  'if m["role"] in {"user", "tool"}:\n  return c\n return ""',
]
const OTHERS = [
  'return str(len(c))',
  'return c.upper() + c[:1]',
  'return c[0:] + c[-1] + c[::-1]',
  'return json.dumps(c)',
  'return json.dumps(m)',
  'return str(m) + repr(c) + f"{c!r}"',
  'return f"{c:>5}" + "{:>5}".format(c)',
  'return "{0}".format(c) + "{x.real}{y}".format(x=1, y=c)',
  'return "%s" % c',
  'return "%s" % (c,)',
  'return c * 2',
  'return "A" if c < "b" else "B"',
  'return "A" if c in "abc" else "B"',
  'return "A" if c in {"a", "b"} else "B"',
  'return {"a": "A", "b": "B"}.get(c, "C")',
  'return "A" if c in {"a": 1} else "B"',
  'table = {"a": "A"}\n table[c] = "C"\n return table["a"]',
  'table = {"a": "A"}\n table[c] = "C"\n return "".join(table.values()) + str(len(table))',
  'counts = {c: 1}\n return str(counts.get("a"))',
  'counts = {}\n counts[c] = 1\n counts["a"] = 2\n counts["a"] += 1\n return str(len(counts))',
  'return str(len({x for x in l}))',
  'return str(len(set(l))) + str(dict.fromkeys(l))',
  'return c.split("a")[0]',
  'return c.replace("a", "b")',
  'return re.sub("a", "b", c)',
  'return "A" if re.match("a", c) else "B"',
  'return "".join(x for x in c)',
  'try:\n  return json.loads(c) and "A"\n except ValueError:\n  return "B"',
  'try:\n  return c + 1\n except TypeError:\n  return "B"',
  'try:\n  return c.upper()\n except BaseException:\n  return "B"',
  'try:\n  return shown(c, 1)\n finally:\n  str(c)',
  'return "A" if c is l[0] else "B"',
  'return "A" if c == c.strip() else "B"',
  'return "A" if (c + "x") == "ax" else "B"',
  'return c if hasattr(c, "upper") else ""',
  'return getattr(c, "upper")()',
  'return functools.reduce(lambda a, b: a + b, l)',
  'return "".join(itertools.chain(l, l))',
  'return "".join(map(str.strip, l))',
  'return max(l) + min(l)',
  'return str(sorted(l))',
  'return str(datetime.datetime.now().year) + c',
  'return Text(c) + "x"',
  'return str(Part(c) == Part("a")) + str(hash(Part(c)))',
  'return str(l.count("a")) + str(l.index(c))',
  'raise ValueError(c)',
]

/** Returns an encoder that writes messages by the function whose index is the effort. */
function createSource(bodies: readonly string[]): string {
  const functions = bodies.map((body, index) => `def form_${index}(c, l, m):\n ${body}\n`)
  return `
import copy, datetime, functools, itertools, json, re

FRAME = "[{content}]"

class Part:
    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return self.text == other.text

    def __hash__(self):
        return hash(self.text)

    @staticmethod
    def of(text):
        return Part(text)

class Text(str):
    pass

def shown(text):
    return text

${functions.join('\n')}
FORMS = [${bodies.map((_, index) => `form_${index}`).join(', ')}]

def write_message(message, order):
    if message["role"] == "tool":
        return f"<tool>{order.get(message['tool_call_id'], 0)}: {message['content']}</tool>"
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or [])
    return "<|" + message["role"] + "|>" + (message["content"] or "") + calls + "<|end|>"

def write_chat(messages):
    order = {}
    for message in messages:
        for call in message.get("tool_calls") or []:
            order[call["id"]] = len(order)
    return "".join(write_message(message, order) for message in messages) + "<|assistant|>"

def encode_messages(messages, thinking_mode, reasoning_effort="chat"):
    if reasoning_effort == "chat":
        return write_chat(messages)
    form = FORMS[int(reasoning_effort)]
    contents = [message["content"] for message in messages]
    return "\\n".join(form(message["content"], contents, message) for message in messages)
`
}

const BODIES = [...SPECIALIZED, ...OTHERS]
const source = createSource(BODIES)
const encoder = (await PythonTemplates.start()).openEncoder(source, 'encode_messages')

/** A Python without restrictions. */
const python = await bootPython()

const getMessages = (contents: readonly string[]): ChatMessage[] =>
  contents.map((content) => ({ role: 'user', content }))

for (const [kind, bodies] of Object.entries({ SPECIALIZED, OTHERS })) {
  t.test(`${kind}: a specialization writes the same as the encoder, or does not apply`, (t) => {
    for (const body of bodies) {
      const variables = {
        add_generation_prompt: true,
        kwargs: { reasoning_effort: String(BODIES.indexOf(body)) },
      }
      const pairs = CONTENTS.map((content, index) => [content, CONTENTS[(index + 3) % CONTENTS.length]!])
      const texts = pairs.map((contents) => {
        const outcome = encoder.render(JSON.stringify(getMessages(contents)), 'null', variables)
        return 'text' in outcome ? outcome.text : undefined
      })
      let applied = 0
      for (const sample of [...pairs.slice(0, 3), ['a', 'a']]) {
        const { paths } = splitContents(getMessages(sample))!
        const messages = JSON.stringify(getMessages(sample))
        const found = encoder.specialize(messages, 'null', variables, JSON.stringify(paths))
        if (found === undefined || 'damaged' in found) continue
        for (const [index, contents] of pairs.entries()) {
          const filled = fillSlots(found, contents)
          if (filled === undefined) continue
          if (filled !== texts[index]) t.equal(filled, texts[index], `${body} of ${JSON.stringify(contents)}`)
          applied += 1
        }
      }
      if (kind === 'SPECIALIZED') t.ok(applied >= 2, `${body} is specialized`)
    }
    t.end()
  })
}

/** Renders the results of three tool calls, as the renderer does: first without the history. */
async function writeResults(prompts: Pick<TemplateService, 'renderNewPart'>, results: string[], id: string) {
  const ids = results.map((_, index) => `${id}-${index}`)
  const history: ChatMessage[] = [
    { role: 'user', content: 'Read.' },
    {
      role: 'assistant',
      content: null,
      tool_calls: ids.map((id) => ({ id, type: 'function', function: { name: 'read', arguments: '{}' } })),
    },
  ]
  const newMessages = results.map((content, index) => ({ role: 'tool', tool_call_id: ids[index]!, content }))
  const request = {
    situation: createTemplateSignature(history, newMessages as ChatMessage[], false),
    newMessages: newMessages as ChatMessage[],
  }
  const part = await prompts.renderNewPart(request, {})
  return part === 'needs_history' ? prompts.renderNewPart({ ...request, history: [history[0]!] }, {}) : part
}

t.test(
  'the encoder writes fewer than 20 of 100 new parts with the results of several tool calls',
  async (t) => {
    const templates = { openEncoder: () => encoder } as unknown as PythonTemplates
    const ids = new Map([
      ['<|end|>', 1],
      ['<|assistant|>', 2],
    ])
    const engine = new PromptEngine(new ChatTemplate(templates, getEncoderFiles(source)), {
      ids,
      eosIds: new Set([1]),
    })
    let jobs = 0
    const prompts = new PromptSpecializer({
      renderNewPart: async (request, options) => {
        jobs += 1
        return engine.renderNewPart(request, options)
      },
      specializePart: async (request, options) => engine.specializePart(request, options),
    } as TemplateService)
    prompts.onFault(() => t.fail('a specialization differs from the encoder'))
    for (let index = 0; index < 100; index += 1) {
      const results = [`line ${index}`, '</tool>', '']
      const { text, endId } = (await writeResults(prompts, results, `call${index}`)) as NewPart
      t.equal(text, `<tool>0: line ${index}</tool><tool>1: </tool></tool><tool>2: </tool><|assistant|>`)
      t.equal(endId, 1)
    }
    t.ok(jobs < 20, `${jobs} of 100 new parts are jobs`)
  },
)

t.test(
  'code with statements that inspect types or handle exceptions in other ways is not specialized',
  async (t) => {
    const isRewritten = (code: string) => {
      python.globals.set('code', code)
      return python.runPython(`
import ast, encoder_tracing, specialize
try:
    compile(encoder_tracing.rewrite(ast.parse(code)), "code", "exec")
    rewritten = True
except specialize.Unspecializable:
    rewritten = False
rewritten
`) as boolean
    }
    const rejected = [
      'with a: pass',
      'match a:\n case str(): pass',
      'a.__class__',
      't"{a}"',
      'try: a()\nfinally:\n while a:\n  break',
      'a() in b in c',
      'a()[0] += 1',
    ]
    for (const code of rejected) t.equal(isRewritten(code), false, code)
    const accepted = [
      'a[0][1] += 1',
      'del a.b["c"]',
      'x: list[int] = f()[1:][0]',
      'class A(B):\n f = super().f',
    ]
    for (const code of accepted) t.equal(isRewritten(code), true, code)
  },
)

/** Returns the words that an encoder with this code searches for. */
function findWords(code: string): { inside: string[]; whole: string[] } {
  python.globals.set('code', code)
  return JSON.parse(
    python.runPython(
      'import ast, json, encoder_words\njson.dumps(encoder_words.find_words(ast.parse(code), "encode_messages"))',
    ) as string,
  )
}

t.test('comparisons of contents are words that a text may be or contain', (t) => {
  const words: [code: string, inside: string[], whole: string[]][] = [
    ['m["content"] == "off"', [], ['off']],
    ['m.get("content", "") in ("on", "off")', [], ['off', 'on']],
    ['"/a" in m["content"]', ['/a'], []],
    ['isinstance(m, str) and "key" in m or m["role"]', ['key'], []],
    ['m["content"][:2] == "/a"', ['/a'], []],
    ['m["content"].startswith(("/a", PLACEHOLDER))', ['/a', '<image>'], []],
    ['re.match("a", m["content"])', [''], []],
    ['m["task"] == "action"', [], ['action']],
    // One variable for a setting, a role and a text, in this function and in another one.
    ['(x := m["content"]) == "off"', [], ['off']],
    ['write(m["content"], "a") or write("b", "c")', [], ['x']],
    ['[*map(write, ["a"], ["b"])]', [], ['x', 'y']],
    ['write(*m)', [], ['x', 'y']],
    ['any(x == "off" for x in m["content"])', [], ['off']],
    ['(lambda x: x == "off")(m["content"])', [], ['off']],
  ]
  for (const [condition, inside, whole] of words)
    t.same(findWords(createEncoder(condition)), { inside, whole }, condition)
  t.end()
})

t.test('comparisons of roles, types, ids, settings and fields are not words', (t) => {
  for (const condition of [
    'm["role"] == "tool" or m.get("role", "user") in ["user"] or "user" != m.get("role")',
    'm["content"][0].get("type") == "text"',
    '"key" in m or m.get("key")',
    'mode == "chat" or mode not in ("a", "b")',
    're.match("[a-z]+", m["tool_call_id"][-9:])',
    'm["id"].startswith("call")',
    'write(m["role"], y=mode) or write("b", m.get("type"))',
    'm is None',
  ])
    t.same(findWords(createEncoder(condition)), { inside: [], whole: [] }, condition)
  t.end()
})

/** Returns an encoder that tests each message. */
function createEncoder(condition: string): string {
  return `
PLACEHOLDER = "<image>"

def write(x, y="default"):
    role, other = x, y
    return role == "x" or other == "y"

def encode_messages(messages, mode):
    return "".join("a" for m in messages if ${condition})
`
}

t.test(
  "the proxy's encoder for Mistral is specialized to the results of tools, and searches no text",
  async (t) => {
    const code = readFileSync(
      join(import.meta.dirname, '../../../../../src/proxy/tokens/templates/python/mistral_encoder.py'),
      'utf8',
    )
    const mistral = (await PythonTemplates.start()).openEncoder(code, 'build_chat_segments')
    t.same(JSON.parse(mistral.words), { inside: [], whole: ['reasoning'] })
    const calls = ['call-abcdefgh1', 'abcdefgh2'].map((id) => ({
      id,
      function: { name: 'f', arguments: '{}' },
    }))
    const getResults = (ids: string[]) =>
      ids.map((id) => ({ role: 'tool', tool_call_id: id, content: `of ${id}` }))
    const getConversation = (ids: string[]) => [
      { role: 'user', content: 'Look.' },
      { role: 'assistant', content: '', tool_calls: calls },
      ...getResults(ids),
    ]
    const ids = calls.map((call) => call.id)
    const paths = ids.flatMap((_, index) => [
      [2 + index, 'tool_call_id'],
      [2 + index, 'content'],
    ])
    const variables = { add_generation_prompt: true }
    const messages = JSON.stringify(getConversation(ids))
    const found = mistral.specialize(messages, 'null', variables, JSON.stringify(paths))
    if (found === undefined || 'damaged' in found) throw new Error('it is not specialized')
    const others = ['other-abcdefgh1', 'abcdefgh2']
    const contents = getResults(others).flatMap((result) => [result.tool_call_id, result.content])
    t.same(mistral.render(JSON.stringify(getConversation(others)), 'null', variables), {
      text: fillSlots(found, contents),
    })
    t.equal(fillSlots(found, contents.toReversed()), undefined, 'results of other calls')
  },
)
