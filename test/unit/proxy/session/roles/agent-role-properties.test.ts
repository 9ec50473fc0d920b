import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { assistant, getAgentRoles, type RecordedRequest, system, user } from './recorded-requests.ts'

const word = fc.constantFrom('a', 'b', 'c', 'd')
const words = fc.array(word, { minLength: 1, maxLength: 5 })
const tools = fc.constantFrom<string[]>([], ['run'], ['run', 'ask'])

/** The requests of a conversation: each follows the previous one and adds one message. */
function createRequests(
  texts: readonly string[],
  getHead: (turn: number) => { system: string; tools: string[] },
): RecordedRequest[] {
  const messages: ChatMessage[] = []
  return texts.map((content, turn) => {
    messages.push(user(content))
    const { system: prompt, tools } = getHead(turn)
    const request = { tools, messages: [system(prompt), ...messages] }
    messages.push(assistant(`answer ${turn}`))
    return request
  })
}

t.test('one chain is main, with any changes of its system prompt and tools', async () => {
  const heads = fc.array(fc.record({ system: word, tools }), { minLength: 5, maxLength: 5 })
  fc.assert(
    fc.property(words, heads, (texts, heads) => {
      const roles = getAgentRoles(createRequests(texts, (turn) => heads[turn]!))
      assert.deepEqual(new Set(roles), new Set(['main']))
    }),
  )
})

t.test('an edited, repeated or truncated history of one agent is main', async () => {
  const pick = fc.array(fc.tuple(words, fc.nat(4)), { minLength: 1, maxLength: 8 })
  fc.assert(
    fc.property(pick, tools, (conversations, tools) => {
      const requests = conversations.flatMap(([texts, index]) =>
        createRequests(texts, () => ({ system: 's', tools })).slice(index % texts.length),
      )
      assert.deepEqual(new Set(getAgentRoles(requests)), new Set(['main']))
    }),
  )
})

t.test('conversations of different agents have one role each, in any interleaving', async () => {
  const agents = fc.array(words, { minLength: 2, maxLength: 4 })
  const order = fc.array(fc.nat(3), { maxLength: 20 })
  fc.assert(
    fc.property(agents, order, (agents, order) => {
      const left = agents.map((texts, agent) =>
        createRequests(
          texts.map((content) => `${content} of ${agent}`),
          () => ({ system: `agent ${agent}`, tools: [`tool ${agent}`] }),
        ),
      )
      const requests: { agent: number; request: RecordedRequest }[] = [
        { agent: 0, request: left[0]!.shift()! },
      ]
      for (const index of [...order, ...left.flatMap((own, agent) => own.map(() => agent))]) {
        const agent = index % left.length
        const request = left[agent]!.shift()
        if (request !== undefined) requests.push({ agent, request })
      }
      const roleOfAgent = new Map<number, string>()
      for (const [index, role] of getAgentRoles(requests.map(({ request }) => request)).entries()) {
        const { agent } = requests[index]!
        assert.equal(role, roleOfAgent.get(agent) ?? role, 'one role per agent')
        roleOfAgent.set(agent, role)
      }
      assert.equal(roleOfAgent.get(0), 'main')
      assert.equal(new Set(roleOfAgent.values()).size, roleOfAgent.size, 'one agent per role')
    }),
  )
})
