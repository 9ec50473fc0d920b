import t from 'tap'
import { AtifSteps } from '../../../../../../src/proxy/http/trainer/formats/atif-steps.ts'
import type { TurnText } from '../../../../../../src/proxy/http/trainer/formats/read-session.ts'
import { addMessageTexts } from '../../../../../helpers/messages.ts'

const user = (content: string) => ({ role: 'user', content })
const tool = (id: string, content = '') => ({ role: 'tool', tool_call_id: id, content })
const call = (id: string) => ({ id, type: 'function', function: { name: 'f', arguments: '{}' } })

/** A completed turn with these messages, whose completion has no tool calls. */
function createTurn(messages: readonly object[]): TurnText {
  const lastMessage = addMessageTexts(messages.map((message) => JSON.stringify(message)))
  const text = { startedAtMs: 0, promptPieces: [], completionText: 'done', toolCalls: '[]', reasoning: null }
  return { turnId: 't', index: 0, line: 'main', lastMessage, ...text } as unknown as TurnText
}

function createSteps(...turns: readonly (readonly object[])[]): AtifSteps {
  const steps = new AtifSteps()
  for (const messages of turns) steps.add(createTurn(messages))
  return steps
}

t.test('a session with many messages is converted in time linear in their number', async (t) => {
  // A search of the earlier steps, results or texts for each of them would take minutes.
  const count = 150_000
  const orphans = Array.from({ length: count }, (_, index) => tool(`${index}`))
  t.equal(createSteps(orphans).steps.length, count + 1)

  const calls = Array.from({ length: count }, (_, index) => call(`${index}`))
  const echo = { role: 'assistant', content: null, tool_calls: calls }
  const [, step] = createSteps([user('go'), echo, ...calls.map(({ id }) => tool(id))]).steps
  t.equal(step?.observation?.results.length, count)
})

t.test(
  'a tool result belongs to its call, else to the last step of the agent, and is added once',
  async (t) => {
    const echo = (id: string) => ({ role: 'assistant', content: '', tool_calls: [call(id)] })
    const results = [tool('a', '1'), tool('a', '2'), tool('other', '3'), tool('other', '4')]
    const { steps } = createSteps([tool('a', '0'), user('go'), echo('a'), user('on'), echo('b'), ...results])
    t.match(steps[0], { source: 'user', message: '0' })
    t.strictSame(
      steps.map(({ observation }) => observation?.results),
      [
        undefined,
        undefined,
        [{ source_call_id: 'a', content: '1' }],
        undefined,
        [{ content: '3' }, { content: '4' }],
        undefined,
      ],
    )
  },
)

t.test(
  'a history that restarts copies the texts of earlier turns, not those that it repeats itself',
  async (t) => {
    const { steps } = createSteps(
      [user('first'), user('go')],
      [user('summary'), user('go'), user('new'), user('new')],
      [user('summary 2'), user('new'), user('go')],
      [user('summary 2'), user('new'), user('go'), { role: 'assistant', content: 'done' }, user('go')],
    )
    t.strictSame(
      steps.map(({ message, is_copied_context: isCopy }) => (isCopy ? `${message} copied` : message)),
      [
        'first',
        'go',
        'done',
        'summary',
        'go copied',
        'new',
        'new',
        'done',
        'summary 2',
        'new copied',
        'go copied',
      ].concat(['done', 'go', 'done']),
    )
  },
)

t.test('texts of earlier turns are not copied for each history that restarts', async (t) => {
  const { add } = Set.prototype
  let additions = 0
  Set.prototype.add = function (value) {
    additions += 1
    return add.call(this, value)
  }
  t.teardown(() => Object.assign(Set.prototype, { add }))
  const count = 300
  createSteps(...Array.from({ length: count }, (_, index) => [user(`history ${index}`)]))
  t.ok(additions < 10 * count, `${additions} additions`)
})
