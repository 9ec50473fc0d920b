import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { WordFinder } from '../../../../../src/proxy/tokens/templates/template-words.ts'
import { createTemplate } from '../../../../helpers/templates.ts'

/** Returns the words of a template that tests a message's content, `c`. */
const getWords = (condition: string) =>
  createTemplate(
    `{% for m in messages %}{% set c = m.content %}{% if ${condition} %}x{% endif %}{% endfor %}`,
  ).getWords()

t.test('words are those that a text is searched for', async (t) => {
  const searches = {
    '"/a" in c': ['/a'],
    'not "/a" not in c': ['/a'],
    'c.startswith("/a") or c.endswith(("/b", "/c"))': ['/a', '/b', '/c'],
    'c.split("</a>")[0] == "x"': ['</a>'],
    'c[:2] == "/a"': ['/a'],
    '(c | replace("/a", "")) != c': ['/a'],
    'c.find(m.name) == 0': [''],
    '1 in c': [],
    'c.strip("\\n")': [],
  }
  for (const [condition, words] of Object.entries(searches))
    t.same([...new Set(getWords(condition).inside)], words, condition)
})

t.test('a list that is iterated over, and a name, have the words that were assigned to them', async (t) => {
  const inList = '{% for w in ["/a", "/b"] %}{% if w in messages[0].content %}x{% endif %}{% endfor %}'
  t.same(new Set(createTemplate(inList).getWords().inside), new Set(['/a', '/b']))
  const named = '{% set w = "/a" %}{% if messages[0].content.endswith(w) %}x{% endif %}'
  t.same(new Set(createTemplate(named).getWords().inside), new Set(['/a']))
})

t.test('fields, roles and members of lists are not words that a text may contain', async (t) => {
  t.same(getWords('"tool_calls" in m or m.role == "user" or c is string'), {
    inside: [],
    whole: ['user', 'user'],
  })
  t.same(getWords('c in ["on", "off"] or m.name in m.required').inside, [])
})

t.test('a word is found in every text of a message', async (t) => {
  const finder = new WordFinder({ inside: ['</think>', 'a"b'], whole: ['off'] })
  const call = { id: 'c', type: 'function' as const, function: { name: 'f', arguments: '{"x":"a\\"b"}' } }
  const toParts = (...texts: string[]): ChatMessage => ({
    role: 'user',
    content: texts.map((text) => ({ type: 'text', text })),
  })
  const matching: ChatMessage[] = [
    { role: 'user', content: 'x</think>' },
    { role: 'user', content: [{ type: 'text', text: 'x</THINK>' }] },
    { role: 'user', content: ' off\n' },
    toParts('x</thi', 'nk>'),
    toParts('o', 'ff'),
    { role: 'assistant', content: [{ type: 'refusal', refusal: '</think>' }] },
    { role: 'assistant', content: null, reasoning_content: '</think>' } as ChatMessage,
    { role: 'assistant', content: null, tool_calls: [call] },
  ]
  for (const message of matching) t.equal(finder.isIn(message), true, JSON.stringify(message))
  for (const content of ['think', 'turn it off', '', null])
    t.equal(finder.isIn({ role: 'user', content } as ChatMessage), false, `${content}`)
  t.equal(new WordFinder({ inside: [], whole: [] }).isIn(matching[0]!), false)
  t.equal(new WordFinder({ inside: [''], whole: [] }).isIn({ role: 'user', content: 'x' }), true)
})
