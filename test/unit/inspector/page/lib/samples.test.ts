import fc from 'fast-check'
import t from 'tap'
import { getFinalResponse, loadEach, toSamples } from '../../../../../src/inspector/page/lib/samples.ts'
import type { Session, Turn } from '../../../../../src/inspector/page/lib/wire.ts'

const withRewards = (...rewards: (number | null)[]) =>
  toSamples(rewards.map((reward, index) => ({ session_id: String(index), reward }) as Session))

t.test('a sample without a reward has no advantage, is not counted and comes last', async (t) => {
  const { samples, mean, count } = withRewards(null, 1, 0)
  t.strictSame(
    samples.map(({ session, centred }) => [session.session_id, centred]),
    [
      ['1', 0.5],
      ['2', -0.5],
      ['0', null],
    ],
  )
  t.strictSame([mean, count], [0.5, 2])
})

t.test('the deviation is that of a sample, divided by n - 1', async (t) => {
  const { samples, std } = withRewards(1, 0, 0, 0)
  t.equal(std, 0.5)
  t.strictSame(
    samples.map(({ normed }) => normed),
    [1.5, -0.5, -0.5, -0.5],
  )
})

t.test('several equal rewards carry no signal, whatever rounding makes of their mean', async (t) => {
  const { samples, std, isFlat } = withRewards(0.1, 0.1, 0.1)
  t.strictSame([std, isFlat], [0, true])
  t.ok(samples.every(({ centred, normed }) => centred === 0 && normed === 0))
})

t.test('one reward alone, or none, carries no signal', async (t) => {
  t.match(withRewards(0.7, null), { std: 0, count: 1, isFlat: false })
  t.match(withRewards(null), { std: 0, count: 0, isFlat: false })
  t.match(withRewards(), { samples: { length: 0 }, isFlat: false })
})

t.test('advantages sum to zero, and have a deviation of one', async (t) => {
  const reward = fc.integer({ min: -1000, max: 1000 }).map((n) => n / 8)
  fc.assert(
    fc.property(fc.array(reward, { minLength: 2, maxLength: 30 }), (rewards) => {
      const normed = withRewards(...rewards).samples.map((sample) => sample.normed!)
      const sum = normed.reduce((all, each) => all + each, 0)
      const squares = normed.reduce((all, each) => all + each ** 2, 0)
      const isFlat = rewards.every((each) => each === rewards[0])
      return Math.abs(sum) < 1e-6 && Math.abs(squares - (isFlat ? 0 : rewards.length - 1)) < 1e-6
    }),
  )
  t.pass('for any rewards')
})

t.test('the final response is the last completed turn with the main agent role', async (t) => {
  const turn = (index: number, agent_role: string, status = 'completed') =>
    ({ index, agent_role, status }) as Turn
  const turns = [
    turn(0, 'main'),
    turn(1, 'main'),
    turn(2, 'subagent:1'),
    turn(3, 'main', 'failed'),
    turn(4, 'side'),
  ]
  t.equal(getFinalResponse(turns)?.index, 1)
  t.equal(getFinalResponse([turn(0, 'side')]), undefined)
})

t.test('samples are requested four at a time', async (t) => {
  const { samples } = withRewards(...Array(10).fill(0))
  let [pending, most] = [0, 0]
  const loaded = await loadEach(samples, async (id) => {
    pending += 1
    most = Math.max(most, pending)
    await Promise.resolve()
    pending -= 1
    return `turns of ${id}`
  })
  t.equal(most, 4)
  t.equal(loaded.size, 10)
  t.equal(loaded.get('7'), 'turns of 7')
})
