import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { assistant, type Call, getLines, system, user } from './recorded-calls.ts'

const word = fc.constantFrom('a', 'b', 'c', 'd')
const words = fc.array(word, { minLength: 1, maxLength: 5 })
const tools = fc.constantFrom<string[]>([], ['run'], ['run', 'ask'])

/** The requests of a conversation: each follows the previous one and adds one message. */
function getCalls(
  texts: readonly string[],
  getHead: (turn: number) => { system: string; tools: string[] },
): Call[] {
  const talk: ChatMessage[] = []
  return texts.map((content, turn) => {
    talk.push(user(content))
    const { system: prompt, tools } = getHead(turn)
    const call = { tools, messages: [system(prompt), ...talk] }
    talk.push(assistant(`answer ${turn}`))
    return call
  })
}

t.test('one chain is main, with any changes of its system prompt and tools', async () => {
  const heads = fc.array(fc.record({ system: word, tools }), { minLength: 5, maxLength: 5 })
  fc.assert(
    fc.property(words, heads, (texts, heads) => {
      const lines = getLines(getCalls(texts, (turn) => heads[turn]!))
      assert.deepEqual(new Set(lines), new Set(['main']))
    }),
  )
})

t.test('an edited, repeated or truncated history of one agent is main', async () => {
  const pick = fc.array(fc.tuple(words, fc.nat(4)), { minLength: 1, maxLength: 8 })
  fc.assert(
    fc.property(pick, tools, (talks, tools) => {
      const calls = talks.flatMap(([texts, index]) =>
        getCalls(texts, () => ({ system: 's', tools })).slice(index % texts.length),
      )
      assert.deepEqual(new Set(getLines(calls)), new Set(['main']))
    }),
  )
})

t.test('conversations of different agents have one role each, in any interleaving', async () => {
  const agents = fc.array(words, { minLength: 2, maxLength: 4 })
  const order = fc.array(fc.nat(3), { maxLength: 20 })
  fc.assert(
    fc.property(agents, order, (agents, order) => {
      const left = agents.map((texts, agent) =>
        getCalls(
          texts.map((content) => `${content} of ${agent}`),
          () => ({ system: `agent ${agent}`, tools: [`tool ${agent}`] }),
        ),
      )
      const calls: { agent: number; call: Call }[] = [{ agent: 0, call: left[0]!.shift()! }]
      for (const index of [...order, ...left.flatMap((own, agent) => own.map(() => agent))]) {
        const agent = index % left.length
        const call = left[agent]!.shift()
        if (call !== undefined) calls.push({ agent, call })
      }
      const lineOfAgent = new Map<number, string>()
      for (const [index, line] of getLines(calls.map(({ call }) => call)).entries()) {
        const { agent } = calls[index]!
        assert.equal(line, lineOfAgent.get(agent) ?? line, 'one role per agent')
        lineOfAgent.set(agent, line)
      }
      assert.equal(lineOfAgent.get(0), 'main')
      assert.equal(new Set(lineOfAgent.values()).size, lineOfAgent.size, 'one agent per role')
    }),
  )
})
