import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { AgentRoleFinder } from '../../../../../src/proxy/session/roles/agent-role-finder.ts'
import { RoleRequestReader } from '../../../../../src/proxy/session/roles/opening.ts'
import { lastOfTexts } from '../../../../helpers/messages.ts'
import { assistant, type Call, find, getLines, record, system, user } from './recorded-calls.ts'

t.test("the size of a request's state does not depend on its tools", async (t) => {
  const tools = JSON.stringify([
    { type: 'function', function: { name: 'f', description: 'x'.repeat(100_000) } },
  ])
  const call = (text: string | null) => ({
    lastMessage: lastOfTexts(['{"role":"user","content":"a"}']),
    tools: text,
  })
  const reader = new RoleRequestReader()
  const [first, again, other, none] = [tools, tools, `${tools} `, null].map(
    (text) => reader.read(call(text)).opening.toolsKey,
  )
  t.ok(first!.length < 100)
  t.equal(again, first)
  t.not(other, first)
  t.equal(none, '')
})

const createConversation = (...contents: string[]): ChatMessage[] =>
  contents.map((content, index) => (index % 2 === 0 ? user(content) : assistant(content)))

/** Returns the requests of one conversation, from the first one to the one with all of these messages. */
function getCalls(head: Omit<Call, 'messages'> & { system?: string }, ...contents: string[]): Call[] {
  const { system: systemText, ...rest } = head
  const before = systemText === undefined ? [] : [system(systemText)]
  return contents.flatMap((_, index) =>
    index % 2 === 0
      ? [{ ...rest, messages: [...before, ...createConversation(...contents.slice(0, index + 1))] }]
      : [],
  )
}

const MAIN = { system: 'You work.', tools: ['run', 'ask'] }
const HELPER = { system: 'You help.', tools: ['run'] }

t.test('an agent without metadata and with one conversation has the main role', async (t) => {
  for (const head of [MAIN, { system: 'You work.' }, { tools: ['run'] }, {}]) {
    t.same(getLines(getCalls(head, 'task', 'a', 'go on', 'b', 'go on')), ['main', 'main', 'main'])
  }
})

t.test('a conversation stays main after changes of its system prompt and tools', async (t) => {
  const [first, second, third] = getCalls(MAIN, 'task', 'a', 'go on', 'b', 'go on') as [Call, Call, Call]
  const later = (call: Call, time: string, tools: string[]): Call => ({
    tools,
    messages: [system(`You work. It is ${time}.`), ...call.messages.slice(1)],
  })
  t.same(find([first, later(second, '10:01', ['run']), later(third, '10:02', [])]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'main', rule: 'continues' },
    { agentRole: 'main', rule: 'continues' },
  ])
})

t.test('a retry, an edited message and another completion are main', async (t) => {
  const [first, second] = getCalls(MAIN, 'task', 'a', 'go on') as [Call, Call]
  const [edited] = getCalls(MAIN, 'the task, in other words') as [Call]
  const [, editedLater] = getCalls(MAIN, 'task', 'a', 'go back') as [Call, Call]
  t.same(getLines([first, first, second, edited, editedLater]), Array(5).fill('main'))
})

t.test("a client's changes to an echo do not end a conversation", async (t) => {
  const parts = [{ type: 'text' as const, text: 'help', cache_control: { type: 'ephemeral' } }]
  const [work, help] = [getCalls(MAIN, 'task'), getCalls(HELPER, 'help')]
  const tidied = {
    tools: ['run'],
    messages: [
      system('You help now.'),
      { role: 'user' as const, content: parts },
      assistant(' a '),
      user('more'),
    ],
  }
  t.same(getLines([...work, ...help, tidied]), ['main', 'subagent:1', 'subagent:1'])
})

t.test('each conversation with its own system prompt or tools is a subagent', async (t) => {
  const [first, second] = getCalls(MAIN, 'task', 'a', 'go on') as [Call, Call]
  const [look, more] = getCalls(HELPER, 'look here', 'x', 'more') as [Call, Call]
  const [other] = getCalls(HELPER, 'look there') as [Call]
  t.same(find([first, look, other, more, second]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'subagent:1', rule: 'new_opening' },
    { agentRole: 'subagent:2', rule: 'new_opening' },
    { agentRole: 'subagent:1', rule: 'continues' },
    { agentRole: 'main', rule: 'continues' },
  ])
})

t.test('a subagent whose request is retried is the same one', async (t) => {
  const [first] = getCalls(MAIN, 'task') as [Call]
  const [look] = getCalls(HELPER, 'look here') as [Call]
  t.same(getLines([first, { ...look, status: 'failed' }, look]), ['main', 'subagent:1', 'subagent:1'])
})

t.test('conversations without tools are subagents, with the same question or others', async (t) => {
  const sendRequest = (systemText: string, question: string) => getCalls({ system: systemText }, question)
  const calls = [
    ...sendRequest('You answer.', 'why?'),
    ...sendRequest('You doubt.', 'why?'),
    ...sendRequest('You judge.', 'who is right?'),
  ]
  t.same(getLines(calls), ['main', 'subagent:1', 'subagent:2'])
})

t.test('a handoff, which keeps the conversation but changes system prompt and tools, is main', async (t) => {
  const [first, second] = getCalls(MAIN, 'task', 'a', 'go on') as [Call, Call]
  t.same(
    getLines([first, { tools: ['refund'], messages: [system('Refunds.'), ...second.messages.slice(1)] }]),
    ['main', 'main'],
  )
})

t.test(
  'a continuation after a compaction, in a conversation that starts with a summary, is main',
  async (t) => {
    const before = getCalls(MAIN, 'task', 'a', 'go on')
    const after = getCalls(MAIN, 'Summary: a was done.', 'b', 'go on')
    t.same(find([...before, ...after]).slice(2), [
      { agentRole: 'main', rule: 'opens_alike' },
      { agentRole: 'main', rule: 'continues' },
    ])
  },
)

t.test('a request without tools before the first one with tools does not take the main role', async (t) => {
  const title = getCalls({ system: 'You name talks.' }, 'task')
  const plan = getCalls({ system: 'You plan.' }, 'task')
  const work = getCalls(MAIN, 'task', 'a', 'go on')
  t.same(find([...title, ...work]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'main', rule: 'first_with_tools' },
    { agentRole: 'main', rule: 'continues' },
  ])
  t.same(getLines([...title, ...plan, ...work, ...getCalls(HELPER, 'look')]), [
    'main',
    'subagent:1',
    'main',
    'main',
    'subagent:2',
  ])
  const talk = getCalls({ system: 'You plan.' }, 'task', 'a', 'go on')
  t.same(
    getLines([...talk, ...getCalls(HELPER, 'look')]),
    ['main', 'main', 'subagent:1'],
    'it continues, which is certain',
  )
})

t.test('a first request that failed does not take the main role', async (t) => {
  const path = (time: string, status: Call['status'] = 'completed'): Call => ({
    messages: [system(`It is ${time}.`), user('task')],
    status,
  })
  t.same(getLines([path('10:01', 'failed'), path('10:02', 'aborted'), path('10:03')]), [
    'main',
    'main',
    'main',
  ])
})

t.test('requests without messages are main', async (t) => {
  t.same(getLines([{ messages: [] }, { messages: [] }]), ['main', 'main'])
})

t.test('a declared agent role has precedence over the detected one', async (t) => {
  const [first, second] = getCalls(MAIN, 'task', 'a', 'go on') as [Call, Call]
  const declare = (call: Call, line: string): Call => ({ ...call, headers: { 'x-llm-proxy-line': line } })
  t.same(find([declare(first, 'main'), declare(second, 'side'), declare(first, 'subagent:critic')]), [
    { agentRole: 'main', rule: 'header' },
    { agentRole: 'side', rule: 'header' },
    { agentRole: 'subagent:critic', rule: 'header' },
  ])
})

t.test("a request declared only as a subagent's has the detected subagent", async (t) => {
  const sub = { headers: { 'x-llm-proxy-line': 'subagent' } }
  const [first] = getCalls(MAIN, 'task') as [Call]
  const [look, more] = getCalls({ ...HELPER, ...sub }, 'look here', 'x', 'more') as [Call, Call]
  const [same] = getCalls({ ...MAIN, ...sub }, 'a part of the task') as [Call]
  t.same(getLines([first, look, same, more]), ['main', 'subagent:1', 'subagent:2', 'subagent:1'])
})

t.test('a subagent that starts with the main conversation does not take the main role', async (t) => {
  const fork = { headers: { 'x-llm-proxy-line': 'subagent:fork' } }
  const [first, second, third] = getCalls(MAIN, 'task', 'a', 'go on', 'b', 'go on') as [Call, Call, Call]
  const [, forked] = getCalls({ ...MAIN, ...fork }, 'task', 'a', 'look here') as [Call, Call]
  t.same(getLines([first, forked, second, third]), ['main', 'subagent:fork', 'main', 'main'])
})

t.test('a side request is never continued, and after a compaction the main role continues', async (t) => {
  const [first, second] = getCalls(MAIN, 'task', 'a', 'go on') as [Call, Call]
  const aside = { ...first, tools: [], headers: { 'x-llm-proxy-line': 'side' } }
  t.same(getLines([aside, first, second]), ['side', 'main', 'main'])
  const summed = { ...first, headers: { 'x-llm-proxy-line': 'compaction' } }
  t.same(getLines([summed, second]), ['compaction', 'main'])
})

t.test('a recorded turn without a role has the detected role, but is never a side request', async (t) => {
  const finder = new AgentRoleFinder()
  const old = (call: Call) => finder.add({ ...record(call), annotations: '{"prompt":{"line":null}}' })
  const title = 'You are a title generator. You output ONLY a thread title.'
  t.equal(old(getCalls(MAIN, 'task')[0]!).agentRole, 'main')
  t.equal(old(getCalls({ system: title }, 'task')[0]!).agentRole, 'subagent:1')
})

t.test('a message with excessive nesting has a role like any other', async (t) => {
  const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`
  const turn = {
    ...record({ messages: [] }),
    requestMessages: [`{"role":"user","content":"x","y":${deep}}`],
  }
  t.equal(new AgentRoleFinder().add(turn).agentRole, 'main')
})
