import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import {
  findReferencedTurn,
  resolveInputItems,
  type TurnSource,
} from '../../../../../src/proxy/dialects/responses/item-references.ts'
import type { InputItem } from '../../../../../src/proxy/dialects/responses/schema.ts'
import type { TurnOutline, TurnRecord } from '../../../../../src/proxy/store/port/turn-store.ts'

const CONNECTED = new AbortController().signal

const refer = (id: string) => ({ type: 'item_reference', id })

function createTurn(index: number) {
  return {
    turnId: `turn-${index}`,
    dialect: 'responses',
    finishReason: 'stop',
    startedAtMs: 0,
    completionText: `answer ${index}`,
    reasoning: 'well',
    toolCalls: '[]',
    params: '{}',
    annotations: JSON.stringify({ responses: { include: [], wire_tools: {}, instructions: false } }),
  } as unknown as TurnRecord & TurnOutline
}

/** The turns of a session, which lists the reads. */
class FakeSession implements TurnSource {
  readonly turns: ReturnType<typeof createTurn>[]
  readonly reads: string[] = []
  /** Called before each turn is read. */
  onRead = () => {}

  constructor(count: number) {
    this.turns = Array.from({ length: count }, (_, index) => createTurn(index))
  }

  find = async (turnId: string) => {
    this.onRead()
    this.reads.push(turnId)
    return this.turns.find((turn) => turn.turnId === turnId)
  }

  readAll = async function* (this: FakeSession) {
    this.reads.push('session')
    for (const turn of this.turns) {
      this.onRead()
      yield turn
    }
  }.bind(this)
}

t.test('a turn is read once for all references to its items', async (t) => {
  const session = new FakeSession(1)
  const user: InputItem = { role: 'user', content: 'on' } as InputItem
  const input = [refer('rs_turn-0_0'), refer('msg_turn-0_0'), user]
  const items = await resolveInputItems({ input }, session, CONNECTED)
  t.same(session.reads, ['turn-0'])
  t.match(items, [{ type: 'reasoning' }, { type: 'message', content: [{ text: 'answer 0' }] }, user])
  const text = await resolveInputItems({ input: 'hi' }, session, CONNECTED)
  t.same(text, [{ type: 'message', role: 'user', content: 'hi' }])
  t.same(await resolveInputItems({}, session, CONNECTED), [])
})

t.test('many referenced turns are read in one pass over the session', async (t) => {
  const session = new FakeSession(400)
  const input = session.turns.slice(0, 300).map(({ turnId }) => refer(`msg_${turnId}_0`))
  const items = await resolveInputItems({ input }, session, CONNECTED)
  t.same(session.reads, ['session'])
  t.match(items[299], { content: [{ text: 'answer 299' }] })
  const few = new FakeSession(400)
  await resolveInputItems({ input: input.slice(0, 2) }, few, CONNECTED)
  t.same(few.reads, ['turn-0', 'turn-1'], 'for a few turns, the session is not read')
})

t.test('reading ends when the agent disconnects', async (t) => {
  for (const count of [2, 300]) {
    const session = new FakeSession(400)
    const agent = new AbortController()
    let reads = 0
    session.onRead = () => {
      reads += 1
      agent.abort(new ProxyError('agent_gone', 'The agent disconnected'))
    }
    const input = session.turns.slice(0, count).map(({ turnId }) => refer(`msg_${turnId}_0`))
    await t.rejects(resolveInputItems({ input }, session, agent.signal), { code: 'agent_gone' })
    t.equal(reads, 1)
  }
})

t.test('a reference without an item, or the second to an item, is rejected with its position', async (t) => {
  const session = new FakeSession(9)
  const known = refer('msg_turn-0_0')
  const many = [1, 2, 3, 4, 5].map((index) => refer(`msg_turn-${index}_0`))
  for (const id of ['msg_turn-9_0', 'rs_turn-0_7', 'fc_turn-0_0', 'msg_x', '', 7, undefined]) {
    const input = [known, { type: 'item_reference', id }]
    const rejected = { code: 'response_not_found', param: 'input.1.id' }
    await t.rejects(resolveInputItems({ input }, session, CONNECTED), rejected, String(id))
    const withMany = resolveInputItems({ input: [...input, ...many] }, session, CONNECTED)
    await t.rejects(withMany, rejected, `${id} beside references to many turns`)
  }
  await t.rejects(resolveInputItems({ input: [known, known] }, session, CONNECTED), {
    code: 'invalid_request',
    message: 'Duplicate item found with id msg_turn-0_0.',
    param: 'input.1.id',
  })
})

t.test(
  'a reference to a later text of a stream is resolved by the first, which contains all text',
  async (t) => {
    const session = new FakeSession(1)
    const resolve = (...ids: string[]) => resolveInputItems({ input: ids.map(refer) }, session, CONNECTED)
    const items = await resolve('rs_turn-0_0', 'msg_turn-0_0', 'rs_turn-0_1', 'msg_turn-0_1')
    t.match(items, [{ type: 'reasoning' }, { type: 'message' }])
    t.equal(items.length, 2)
    for (const ids of [['msg_turn-0_1'], ['rs_turn-0_0', 'msg_turn-0_1'], ['msg_turn-0_1', 'msg_turn-0_0']])
      await t.rejects(resolve(...ids), { code: 'response_not_found' }, String(ids))
    await t.rejects(resolve('msg_turn-0_0', 'msg_turn-0_1', 'msg_turn-0_1'), { code: 'invalid_request' })
  },
)

t.test('the first reference of an unchecked body names the continued turn', async (t) => {
  const user = { role: 'user', content: 'hi' }
  t.equal(findReferencedTurn([user, refer('rs_a-b_0'), refer('msg_c_0')]), 'a-b')
  for (const input of [undefined, null, 'hi', 7, {}, [], [null, 7, user], [{ type: 'item_reference' }]])
    t.equal(findReferencedTurn(input), undefined, JSON.stringify(input))
})

t.test('an id with a million digits is rejected in linear time', async (t) => {
  const input = [refer(`msg_${'1'.repeat(3_000_000)}x`)]
  await t.rejects(resolveInputItems({ input }, new FakeSession(1), CONNECTED), { code: 'response_not_found' })
})
