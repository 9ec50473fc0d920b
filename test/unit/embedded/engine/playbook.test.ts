import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Playbook } from '../../../../src/embedded/engine/playbook.ts'
import type {
  PromptConversation,
  PromptMessage,
} from '../../../../src/embedded/engine/prompt-conversation.ts'

function createConversation(messages: PromptMessage[], tools: string[] = []): PromptConversation {
  const taskAt = messages.findLastIndex((message) => message.role === 'user')
  const step = messages.slice(taskAt + 1).filter((message) => message.role === 'assistant').length
  return { messages, tools: new Set(tools), task: messages[taskAt]?.text ?? '', step }
}

const user = (text: string): PromptMessage => ({ role: 'user', text })
const assistant = (text: string): PromptMessage => ({ role: 'assistant', text })
const reports = (text: string): PromptMessage => ({ role: 'tool', text })

function createPlaybook(...rules: { when: object; answer: object }[]): Playbook {
  return new Playbook({ rules: rules.map((rule, i) => ({ name: `rule ${i}`, ...rule })) })
}

t.test('the first rule whose conditions all match gives the response', async (t) => {
  const book = createPlaybook(
    { when: { text: 'hello', tool: 'bash' }, answer: { content: 'with a shell' } },
    { when: { text: 'hello' }, answer: { content: 'plain' } },
    { when: {}, answer: { content: 'anything' } },
  )
  t.equal(book.findResponse(createConversation([user('Hello!')]), undefined)?.text, 'plain')
  t.equal(book.findResponse(createConversation([user('Hello!')], ['bash']), undefined)?.text, 'with a shell')
  t.equal(book.findResponse(createConversation([user('Bye')]), undefined)?.rule, 'rule 2')
})

t.test('each condition can exclude a rule', async (t) => {
  const conversation = createConversation([user('go'), assistant('x'), reports('42 files')], ['bash'])
  const holds = { role: 'tool', text: '42', user: '^go$', step: 1, tool: 'bash', model: 'm', messages: 3 }
  const fails = { role: 'user', text: '43', user: 'stop', step: 2, tool: 'python', model: 'n', messages: 2 }
  t.ok(createPlaybook({ when: holds, answer: { content: 'yes' } }).findResponse(conversation, 'm'))
  for (const [condition, value] of Object.entries(fails)) {
    const book = createPlaybook({ when: { ...holds, [condition]: value }, answer: { content: 'yes' } })
    t.equal(book.findResponse(conversation, 'm'), undefined, condition)
  }
})

t.test('captures of both patterns are inserted into content, reasoning and nested arguments', async (t) => {
  const book = createPlaybook({
    when: { user: 'write (?<file>\\S+)', text: '(\\d+) lines' },
    answer: {
      reasoning: 'I saw $1 lines.',
      content: 'Writing $<file> for $$5.',
      tool_calls: [
        { name: 'write', arguments: { path: '/tmp/$<file>', edits: [{ at: '$1', n: 3, all: true }] } },
      ],
    },
  })
  const conversation = createConversation([user('Write a.txt'), assistant('x'), reports('12 lines')])
  t.equal(
    book.findResponse(conversation, undefined)?.text,
    '<think>\nI saw 12 lines.\n</think>\n\nWriting a.txt for $5.\n<tool_call>\n' +
      '{"name": "write", "arguments": {"path": "/tmp/a.txt", "edits": [{"at": "12", "n": 3, "all": true}]}}\n' +
      '</tool_call>',
  )
})

t.test('a capture group that did not participate is empty', async (t) => {
  const book = createPlaybook({ when: { text: 'a(b)?c' }, answer: { content: '[$1$2]' } })
  t.equal(book.findResponse(createConversation([user('ac')]), undefined)?.text, '[]')
})

t.test(
  'a conversation without messages, or one that ends with the assistant, gets no response',
  async (t) => {
    const book = createPlaybook({ when: {}, answer: { content: 'x' } })
    t.equal(book.findResponse(createConversation([user('a'), assistant('b')]), undefined), undefined)
    t.equal(book.findResponse(createConversation([]), undefined), undefined)
  },
)

t.test('a malformed playbook is rejected with the path of the error', async (t) => {
  const rule = { name: 'r', when: {}, answer: {} }
  const wrong: [unknown, RegExp][] = [
    [null, /playbook: the value must be object/],
    [{ rules: [{ ...rule, when: { text: '(' } }] }, /rules\.0\.when\.text: Invalid regular expression/],
    [{ rules: [rule, { ...rule, when: { texts: 'a' } }] }, /rules\.1\.when\.texts is unknown/],
    [
      { rules: [{ ...rule, when: { role: 'system' } }] },
      /rules\.0\.when\.role must be equal to one of the allowed/,
    ],
    [{ rules: [{ name: 'r', when: {} }] }, /rules\.0\.answer is missing/],
    [
      { rules: [{ ...rule, answer: { cut_after_tokens: 0 } }] },
      /rules\.0\.answer\.cut_after_tokens must be >= 1/,
    ],
    [{ rules: [{ ...rule, when: { step: '1' } }] }, /rules\.0\.when\.step must be integer/],
  ]
  for (const [source, message] of wrong)
    t.throws(() => new Playbook(source), { code: 'config_invalid', message })
})

t.test('a playbook file that is missing or not JSON is rejected with its path', async (t) => {
  const folder = t.testdir({ 'broken.json': '{', 'good.json': '{"rules": []}' })
  t.throws(() => Playbook.fromFile(join(folder, 'none.json')), {
    code: 'config_invalid',
    message: /none\.json/,
  })
  t.throws(() => Playbook.fromFile(join(folder, 'broken.json')), {
    code: 'config_invalid',
    message: /broken\.json/,
  })
  t.ok(Playbook.fromFile(join(folder, 'good.json')).isEmpty)
})

t.test('the documented example runs through its three steps', async (t) => {
  const page = readFileSync(new URL('../../../../docs/embedded-engine.md', import.meta.url), 'utf8')
  const book = new Playbook(JSON.parse(/```json\n(.*?)```/s.exec(page)![1]!))
  const messages = [user('Please fix src/a.py')]
  const rules = ['file content', '3 passed', ''].map((result) => {
    const response = book.findResponse(createConversation(messages, ['bash']), undefined)
    messages.push(assistant(response?.text ?? ''), reports(result))
    return response
  })
  t.match(rules[0]?.text, /cat src\/a\.py/)
  t.match(rules[1]?.text, /pytest -q src\/a\.py/)
  t.equal(rules[2]?.text, 'Done: 3 tests pass.')
})

t.test('the built-in playbook solves sums with a calculator', async (t) => {
  const book = Playbook.fromFile(
    join(import.meta.dirname, '../../../../src/embedded/engine/default-playbook.json'),
  )
  /** Returns the expressions that the calculator receives, one per step, and the last sentence. */
  const solve = (task: string): string[] => {
    const messages = [user(task)]
    const texts: string[] = []
    while (texts.length < 6) {
      const text =
        book.findResponse(createConversation(messages, ['calculator']), undefined)?.text ?? 'no rule'
      const expression = /"expression": "(.*?)"/.exec(text)?.[1]
      texts.push(expression ?? text)
      if (expression === undefined) break
      messages.push(assistant(text), reports(String(evaluate(expression))))
    }
    return texts
  }
  t.same(solve('What is 12 + 7?'), ['12 + 7', 'The answer is 19.'])
  t.same(solve("what's 12 times -3"), ['12 * -3', 'The answer is -36.'])
  t.same(solve('Calculate 1.5 plus 2'), ['1.5 + 2', 'The answer is 3.5.'])
  t.same(solve('7 divided by 2, please'), ['7 / 2', 'The answer is 3.5.'])
  t.same(solve('9 minus 10'), ['9 - 10', 'The answer is -1.'])
  t.same(solve('Compute (12 + 7) * 3 step by step'), ['12 + 7', '19 * 3', 'The answer is 57.'])
  t.same(solve('Compute 3 * (12 - 20).'), ['12 - 20', '3 * -8', 'The answer is -24.'])
  t.same(solve('2 + 3 * 4'), ['3 * 4', '2 + 12', 'The answer is 14.'])
  t.same(solve('20 - 3 - 4'), ['20 - 3', '17 - 4', 'The answer is 13.'])
  t.equal(
    book.findResponse(createConversation([user('What is 12 + 7?')]), undefined),
    undefined,
    'only if a calculator is offered',
  )
  const failed = createConversation(
    [user('1 / 0'), assistant('x'), reports('Error: division by zero')],
    ['calculator'],
  )
  t.equal(book.findResponse(failed, undefined)?.text, 'The calculator could not work that out.')
})

function evaluate(expression: string): number {
  const [a, op, b] = expression.split(' ') as [string, string, string]
  const results: Record<string, number> = {
    '+': Number(a) + Number(b),
    '-': Number(a) - Number(b),
    '*': Number(a) * Number(b),
    '/': Number(a) / Number(b),
  }
  return results[op]!
}
