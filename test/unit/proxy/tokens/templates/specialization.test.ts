import t from 'tap'
import { bootPython } from '../../../../../src/proxy/tokens/templates/python/boot.ts'
import {
  fillSlots,
  isVerified,
  type Specialization,
  splitContents,
} from '../../../../../src/proxy/tokens/templates/specialization.ts'
import { createTemplate, loadTemplate } from '../../../../helpers/templates.ts'
import { IS_FULL } from '../../../../helpers/tier.ts'
import { modelDirectory } from '../real-models.ts'

const CONTENTS = [
  '',
  'a',
  'b',
  ' a ',
  'aba',
  '\n',
  'xay',
  '<tool_response>',
  '1',
  '{"a": 1}',
  '%s',
  'é\u2028',
  '𝔸',
]

/** Expressions of a content `c`, the list `l` of all contents, and the message `m`. */
const SPECIALIZED = [
  '{{ c }}',
  '{{ "<" + c + ">" }}',
  '{{ "<" ~ c ~ ">" }}',
  '{{ c | trim }}',
  '{{ c | trim("ab") }}',
  '{{ c.strip() ~ c.lstrip("a") ~ c.rstrip("\\n") }}',
  '{{ (" " ~ c ~ "\\n") | trim }}',
  '{{ c | string }}',
  '{{ c | default("none", true) }}',
  '{{ c or "none" }}{{ c and "some" }}{{ not c }}',
  '{% if c.startswith("a") %}A{% elif c.endswith(("b", "y")) %}B{% endif %}',
  '{% if "a" in c %}A{% else %}{{ c }}{% endif %}',
  '{% if c == "a" %}A{% elif c != "b" %}{{ c }}{% endif %}',
  '{{ c in ["a", "b"] }}{{ c is in ["1"] }}',
  '{{ c is string }}{{ c is mapping }}{{ c is iterable }}{{ c is sequence }}{{ c is number }}{{ c is none }}',
  '{{ c is defined }}{{ c is true }}{{ c is boolean }}{{ c is not none }}',
  '{% macro shown(text) %}[{{ text }}]{% endmacro %}{{ shown(c) | trim }}',
  '{% set text %}{{ c }}{% endset %}{{ text.strip("[") }}',
  '{% set ns = namespace(text=c) %}{% set ns.text = ns.text + "!" %}{{ ns.text }}',
  '{{ l | length }}{{ l | first }}{{ (l | list)[0] }}',
  '{% generation %}{{ c }}{% endgeneration %}',
  '{% if "</think>" in c %}{{ c.split("</think>")[-1] }}{% else %}{{ c.split("</think>")[-1].lstrip("\\n") }}{% endif %}',
]
const OTHERS = [
  '{{ c | length }}',
  '{{ c | upper }}{{ c.title() }}',
  '{{ c[:2] }}{{ c[0] }}',
  '{{ c[::-1] }}',
  '{{ c | tojson }}',
  '{{ m | tojson }}',
  '{{ [c] | string }}{{ m }}',
  '{{ c.split("a")[0] }}',
  '{{ c.split("a") | length }}',
  '{{ c.split() }}',
  '{{ c.replace("a", "b") }}{{ c | replace("a", "b") }}',
  '{{ c * 2 }}',
  '{{ "%s" | format(c) }}',
  '{{ "%s" % c }}{{ "{}".format(c) }}',
  '{{ c < "b" }}',
  '{{ c in "abc" }}{{ "abc".find(c) }}',
  '{{ {"a": 1}[c] }}',
  '{{ {"a": 1}.get(c, 2) }}',
  '{{ [1, 2][c] is defined }}',
  '{{ c.missing is defined }}{{ c["missing"] is defined }}',
  '{{ c._pieces }}{{ c._ask }}',
  '{{ c.__class__ }}',
  '{{ c.find("a") }}{{ c.count("a") }}',
  '{{ c is sameas c }}',
  '{{ c is lower }}{{ c is upper }}',
  '{{ c | first }}{{ c | last }}',
  '{{ c | list | length }}',
  '{% for letter in c %}{{ loop.index }}{% endfor %}',
  '{{ c | int }}{{ c | float }}',
  '{{ c | escape }}{{ c | e }}',
  '{{ c | indent }}{{ c | truncate(1) }}{{ c | wordcount }}',
  '{{ c | reverse }}{{ c | attr("x") }}',
  '{{ c is escaped }}{{ c is callable }}',
  '{{ l | join(",") }}{{ ", ".join(l) }}',
  '{{ l | unique | list | length }}',
  '{{ l | sort | first }}{{ l | max }}',
  '{{ l | map("upper") | list }}',
  '{{ l | map("length") | sum }}',
  '{{ l | select("equalto", "a") | list | length }}{{ l | select | list | length }}',
  '{{ l | reject("string") | list | length }}',
  '{{ messages | groupby("content") | length }}',
  '{{ messages | selectattr("content", "equalto", "a") | list | length }}',
  '{{ messages | map(attribute="content") | join }}',
  '{{ m == messages[0] }}{{ c == l[0] }}{{ l.index(c) }}',
  '{{ loop.changed(c) }}',
  '{{ strftime_now("%Y") ~ c }}',
  '{{ strftime_now("%Y") == "2026" }}{{ c }}',
  '{% set text %}{{ c }}{% endset %}{{ text | length }}',
  '{{ (c ~ "x") | length }}{{ (c ~ "x")[0] }}{{ (c ~ "x") == "ax" }}',
  '{{ dict(a=c) }}{{ dict.fromkeys([c]) | length }}',
  '{{ range(c) }}',
  '{{ raise_exception(c) }}',
  '{{ [1, 2, 3] | random }}{{ c }}',
  '{{ lipsum(n=1) }}{{ c }}',
  '{% if c > "a" %}{{ c }}{% endif %}',
]

const OPTIONS = { now: new Date(2026, 2, 7) }
const getMessages = (contents: readonly string[]) =>
  contents.map((content) => ({ role: 'user' as const, content }))

function createLoopTemplate(expression: string) {
  const head = '{% set l = messages | map(attribute="content") | list %}'
  const loop = `{% for m in messages %}{% set c = m.content %}${expression}{% endfor %}`
  return createTemplate(head + loop)
}

for (const [kind, expressions] of Object.entries({ SPECIALIZED, OTHERS })) {
  t.test(`${kind}: a specialization writes the same as the template, or does not apply`, (t) => {
    for (const expression of expressions) {
      const template = createLoopTemplate(expression)
      const render = (contents: readonly string[]) => {
        try {
          return template.render(getMessages(contents), OPTIONS)
        } catch {
          return 'rejected'
        }
      }
      const pairs = CONTENTS.map((content, index) => [content, CONTENTS[(index + 5) % CONTENTS.length]!])
      const texts = pairs.map(render)
      let applied = 0
      // Each expression is specialized with every third pair, and filled with all of them.
      for (const sample of IS_FULL ? pairs : pairs.filter((_, index) => index % 3 === 0)) {
        const { paths } = splitContents(getMessages(sample))!
        const found = template.specialize(getMessages(sample), OPTIONS, paths)
        if (found === undefined) continue
        for (const [index, contents] of pairs.entries()) {
          const filled = fillSlots(found, contents)
          if (filled === undefined) continue
          if (filled !== texts[index])
            t.equal(filled, texts[index], `${expression} of ${JSON.stringify(contents)}`)
          applied += 1
        }
      }
      if (kind === 'SPECIALIZED') t.ok(applied >= CONTENTS.length, `${expression} is specialized`)
    }
    t.end()
  })
}

t.test('white space is defined as in Python', async (t) => {
  const python = await bootPython()
  const listed = python.runPython('",".join(str(i) for i in range(0x110000) if chr(i).isspace())') as string
  const strips: Specialization = { pieces: [[0, [['l', null]]]], conditions: [] }
  const here = Array.from({ length: 0x110000 }, (_, code) => code).filter(
    (code) => fillSlots(strips, [String.fromCodePoint(code)]) === '',
  )
  t.equal(here.join(), listed)
})

t.test('published templates are specialized to a question, except those that write the date', (t) => {
  const question = getMessages(['Hello.'])
  const { paths } = splitContents(question)!
  for (const [name, isSpecialized] of [
    ['qwen3', true],
    ['gemma3', true],
    ['llama3_2', false],
  ] as const) {
    const { template } = loadTemplate(modelDirectory(name))
    const found = template.specialize(question, OPTIONS, paths)
    t.equal(found !== undefined, isSpecialized, name)
    if (found !== undefined)
      t.equal(fillSlots(found, [' Well? ']), template.render(getMessages([' Well? ']), OPTIONS), name)
  }
  t.end()
})

t.test('text that changes with each rendering is not specialized', (t) => {
  for (const expression of [
    '{{ [1, 2, 3] | random }}{{ c }}',
    '{{ lipsum(n=1) }}{{ c }}',
    '{{ strftime_now("%Y") }}',
  ]) {
    const { paths } = splitContents(getMessages(['a']))!
    t.equal(
      createLoopTemplate(expression).specialize(getMessages(['a']), OPTIONS, paths),
      undefined,
      expression,
    )
  }
  t.end()
})

t.test('a wrong specialization is detected by the output of the template', (t) => {
  const render = ([content]: readonly string[]) => `<${content!.trim()}>`
  const slot = [0, []] as const
  for (const wrong of [
    { pieces: ['<', slot, '>'], conditions: [] },
    { pieces: ['<a>'], conditions: [] },
    { pieces: ['<', slot, '>'], conditions: [[0, [], 'starts', 'a', true]] },
  ] as Specialization[])
    t.notOk(isVerified(wrong, ['a'], render), JSON.stringify(wrong))
  const strips = [
    ['l', null],
    ['r', null],
  ] as const
  t.ok(isVerified({ pieces: ['<', [0, strips], '>'], conditions: [] }, ['a'], render))
  t.notOk(
    isVerified({ pieces: ['a'], conditions: [] }, ['a'], () => undefined),
    'the template rejects the sample',
  )
  t.end()
})

t.test('an unpaired surrogate is not searched for', (t) => {
  const { paths } = splitContents(getMessages(['𝔸']))!
  const template = createLoopTemplate(`{% if "\ud835" in c %}A{% else %}B{% endif %}`)
  t.equal(template.specialize(getMessages(['𝔸']), OPTIONS, paths), undefined)
  t.end()
})

t.test('messages with fields other than texts have no shape', (t) => {
  for (const message of [
    { role: 'user', content: [{ type: 'text', text: 'a' }] },
    { role: 'assistant', content: null },
    { role: 'assistant', content: 'a', tool_calls: [] },
    { role: 'user', content: 'a', cache_control: { type: 'ephemeral' } },
    { role: 'user', content: '\ud800' },
  ])
    t.equal(splitContents([JSON.stringify(message)]), undefined, JSON.stringify(message))
  t.equal(splitContents(Array(9).fill('{"role":"user","content":"a"}')), undefined, 'too many')
  t.equal(
    splitContents([JSON.stringify({ role: 'user', content: 'a'.repeat(65_536) })]),
    undefined,
    'too long',
  )
  t.end()
})
