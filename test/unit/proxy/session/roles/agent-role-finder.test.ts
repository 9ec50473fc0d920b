import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { AgentRoleFinder } from '../../../../../src/proxy/session/roles/agent-role-finder.ts'
import { RoleRequestReader } from '../../../../../src/proxy/session/roles/opening.ts'
import { addMessageTexts } from '../../../../helpers/messages.ts'
import {
  assistant,
  createRoleInput,
  findRoles,
  getAgentRoles,
  type RecordedRequest,
  system,
  user,
} from './recorded-requests.ts'

t.test("the size of a request's state does not depend on its tools", async (t) => {
  const tools = JSON.stringify([
    { type: 'function', function: { name: 'f', description: 'x'.repeat(100_000) } },
  ])
  const request = (text: string | null) => ({
    lastMessage: addMessageTexts(['{"role":"user","content":"a"}']),
    tools: text,
  })
  const reader = new RoleRequestReader()
  const [first, again, other, none] = [tools, tools, `${tools} `, null].map(
    (text) => reader.read(request(text)).opening.toolsKey,
  )
  t.ok(first!.length < 100)
  t.equal(again, first)
  t.not(other, first)
  t.equal(none, '')
})

const createMessages = (...contents: string[]): ChatMessage[] =>
  contents.map((content, index) => (index % 2 === 0 ? user(content) : assistant(content)))

/** Returns the requests of one conversation, from the first one to the one with all of these messages. */
function createRequests(
  head: Omit<RecordedRequest, 'messages'> & { system?: string },
  ...contents: string[]
): RecordedRequest[] {
  const { system: systemText, ...rest } = head
  const before = systemText === undefined ? [] : [system(systemText)]
  return contents.flatMap((_, index) =>
    index % 2 === 0
      ? [{ ...rest, messages: [...before, ...createMessages(...contents.slice(0, index + 1))] }]
      : [],
  )
}

const MAIN = { system: 'You work.', tools: ['run', 'ask'] }
const HELPER = { system: 'You help.', tools: ['run'] }

t.test('an agent without metadata and with one conversation has the main role', async (t) => {
  for (const head of [MAIN, { system: 'You work.' }, { tools: ['run'] }, {}]) {
    t.same(getAgentRoles(createRequests(head, 'task', 'a', 'go on', 'b', 'go on')), ['main', 'main', 'main'])
  }
})

t.test('a conversation stays main after changes of its system prompt and tools', async (t) => {
  const [first, second, third] = createRequests(MAIN, 'task', 'a', 'go on', 'b', 'go on') as [
    RecordedRequest,
    RecordedRequest,
    RecordedRequest,
  ]
  const later = (request: RecordedRequest, time: string, tools: string[]): RecordedRequest => ({
    tools,
    messages: [system(`You work. It is ${time}.`), ...request.messages.slice(1)],
  })
  t.same(findRoles([first, later(second, '10:01', ['run']), later(third, '10:02', [])]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'main', rule: 'continues' },
    { agentRole: 'main', rule: 'continues' },
  ])
})

t.test('a retry, an edited message and another completion are main', async (t) => {
  const [first, second] = createRequests(MAIN, 'task', 'a', 'go on') as [RecordedRequest, RecordedRequest]
  const [edited] = createRequests(MAIN, 'the task, in other words') as [RecordedRequest]
  const [, editedLater] = createRequests(MAIN, 'task', 'a', 'go back') as [RecordedRequest, RecordedRequest]
  t.same(getAgentRoles([first, first, second, edited, editedLater]), Array(5).fill('main'))
})

t.test("a client's changes to an echo do not end a conversation", async (t) => {
  const parts = [{ type: 'text' as const, text: 'help', cache_control: { type: 'ephemeral' } }]
  const [work, help] = [createRequests(MAIN, 'task'), createRequests(HELPER, 'help')]
  const tidied = {
    tools: ['run'],
    messages: [
      system('You help now.'),
      { role: 'user' as const, content: parts },
      assistant(' a '),
      user('more'),
    ],
  }
  t.same(getAgentRoles([...work, ...help, tidied]), ['main', 'subagent:1', 'subagent:1'])
})

t.test('each conversation with its own system prompt or tools is a subagent', async (t) => {
  const [first, second] = createRequests(MAIN, 'task', 'a', 'go on') as [RecordedRequest, RecordedRequest]
  const [look, more] = createRequests(HELPER, 'look here', 'x', 'more') as [RecordedRequest, RecordedRequest]
  const [other] = createRequests(HELPER, 'look there') as [RecordedRequest]
  t.same(findRoles([first, look, other, more, second]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'subagent:1', rule: 'new_opening' },
    { agentRole: 'subagent:2', rule: 'new_opening' },
    { agentRole: 'subagent:1', rule: 'continues' },
    { agentRole: 'main', rule: 'continues' },
  ])
})

t.test('a subagent whose request is retried is the same one', async (t) => {
  const [first] = createRequests(MAIN, 'task') as [RecordedRequest]
  const [look] = createRequests(HELPER, 'look here') as [RecordedRequest]
  t.same(getAgentRoles([first, { ...look, status: 'failed' }, look]), ['main', 'subagent:1', 'subagent:1'])
})

t.test('conversations without tools are subagents, with the same question or others', async (t) => {
  const createRequest = (systemText: string, question: string) =>
    createRequests({ system: systemText }, question)
  const requests = [
    ...createRequest('You answer.', 'why?'),
    ...createRequest('You doubt.', 'why?'),
    ...createRequest('You judge.', 'who is right?'),
  ]
  t.same(getAgentRoles(requests), ['main', 'subagent:1', 'subagent:2'])
})

t.test('a handoff, which keeps the conversation but changes system prompt and tools, is main', async (t) => {
  const [first, second] = createRequests(MAIN, 'task', 'a', 'go on') as [RecordedRequest, RecordedRequest]
  t.same(
    getAgentRoles([
      first,
      { tools: ['refund'], messages: [system('Refunds.'), ...second.messages.slice(1)] },
    ]),
    ['main', 'main'],
  )
})

t.test(
  'a continuation after a compaction, in a conversation that starts with a summary, is main',
  async (t) => {
    const before = createRequests(MAIN, 'task', 'a', 'go on')
    const after = createRequests(MAIN, 'Summary: a was done.', 'b', 'go on')
    t.same(findRoles([...before, ...after]).slice(2), [
      { agentRole: 'main', rule: 'opens_alike' },
      { agentRole: 'main', rule: 'continues' },
    ])
  },
)

t.test('a request without tools before the first one with tools does not take the main role', async (t) => {
  const title = createRequests({ system: 'You name talks.' }, 'task')
  const plan = createRequests({ system: 'You plan.' }, 'task')
  const work = createRequests(MAIN, 'task', 'a', 'go on')
  t.same(findRoles([...title, ...work]), [
    { agentRole: 'main', rule: 'first' },
    { agentRole: 'main', rule: 'first_with_tools' },
    { agentRole: 'main', rule: 'continues' },
  ])
  t.same(getAgentRoles([...title, ...plan, ...work, ...createRequests(HELPER, 'look')]), [
    'main',
    'subagent:1',
    'main',
    'main',
    'subagent:2',
  ])
  const conversation = createRequests({ system: 'You plan.' }, 'task', 'a', 'go on')
  t.same(
    getAgentRoles([...conversation, ...createRequests(HELPER, 'look')]),
    ['main', 'main', 'subagent:1'],
    'it continues, which is certain',
  )
})

t.test('a first request that failed does not take the main role', async (t) => {
  const createAttempt = (time: string, status: RecordedRequest['status'] = 'completed'): RecordedRequest => ({
    messages: [system(`It is ${time}.`), user('task')],
    status,
  })
  t.same(
    getAgentRoles([
      createAttempt('10:01', 'failed'),
      createAttempt('10:02', 'aborted'),
      createAttempt('10:03'),
    ]),
    ['main', 'main', 'main'],
  )
})

t.test('requests without messages are main', async (t) => {
  t.same(getAgentRoles([{ messages: [] }, { messages: [] }]), ['main', 'main'])
})

t.test('a declared agent role has precedence over the detected one', async (t) => {
  const [first, second] = createRequests(MAIN, 'task', 'a', 'go on') as [RecordedRequest, RecordedRequest]
  const declare = (request: RecordedRequest, agentRole: string): RecordedRequest => ({
    ...request,
    headers: { 'x-llm-proxy-line': agentRole },
  })
  t.same(findRoles([declare(first, 'main'), declare(second, 'side'), declare(first, 'subagent:critic')]), [
    { agentRole: 'main', rule: 'header' },
    { agentRole: 'side', rule: 'header' },
    { agentRole: 'subagent:critic', rule: 'header' },
  ])
})

t.test("a request declared only as a subagent's has the detected subagent", async (t) => {
  const sub = { headers: { 'x-llm-proxy-line': 'subagent' } }
  const [first] = createRequests(MAIN, 'task') as [RecordedRequest]
  const [look, more] = createRequests({ ...HELPER, ...sub }, 'look here', 'x', 'more') as [
    RecordedRequest,
    RecordedRequest,
  ]
  const [same] = createRequests({ ...MAIN, ...sub }, 'a part of the task') as [RecordedRequest]
  t.same(getAgentRoles([first, look, same, more]), ['main', 'subagent:1', 'subagent:2', 'subagent:1'])
})

t.test('a subagent that starts with the main conversation does not take the main role', async (t) => {
  const fork = { headers: { 'x-llm-proxy-line': 'subagent:fork' } }
  const [first, second, third] = createRequests(MAIN, 'task', 'a', 'go on', 'b', 'go on') as [
    RecordedRequest,
    RecordedRequest,
    RecordedRequest,
  ]
  const [, forked] = createRequests({ ...MAIN, ...fork }, 'task', 'a', 'look here') as [
    RecordedRequest,
    RecordedRequest,
  ]
  t.same(getAgentRoles([first, forked, second, third]), ['main', 'subagent:fork', 'main', 'main'])
})

t.test('a side request is never continued, and after a compaction the main role continues', async (t) => {
  const [first, second] = createRequests(MAIN, 'task', 'a', 'go on') as [RecordedRequest, RecordedRequest]
  const aside = { ...first, tools: [], headers: { 'x-llm-proxy-line': 'side' } }
  t.same(getAgentRoles([aside, first, second]), ['side', 'main', 'main'])
  const summed = { ...first, headers: { 'x-llm-proxy-line': 'compaction' } }
  t.same(getAgentRoles([summed, second]), ['compaction', 'main'])
})

t.test('a recorded turn without a role has the detected role, but is never a side request', async (t) => {
  const finder = new AgentRoleFinder()
  const findOldRole = (request: RecordedRequest) =>
    finder.add({ ...createRoleInput(request), annotations: '{"prompt":{"line":null}}' })
  const title = 'You are a title generator. You output ONLY a thread title.'
  t.equal(findOldRole(createRequests(MAIN, 'task')[0]!).agentRole, 'main')
  t.equal(findOldRole(createRequests({ system: title }, 'task')[0]!).agentRole, 'subagent:1')
})

t.test('a message with excessive nesting has a role like any other', async (t) => {
  const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`
  const turn = {
    ...createRoleInput({ messages: [] }),
    requestMessages: [`{"role":"user","content":"x","y":${deep}}`],
  }
  t.equal(new AgentRoleFinder().add(turn).agentRole, 'main')
})
