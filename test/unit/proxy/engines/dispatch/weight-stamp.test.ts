/** The weight versions of responses of engines that report none. */
import t from 'tap'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { WeightStamp } from '../../../../../src/proxy/engines/dispatch/weight-stamp.ts'

const START = { type: 'start', engine: 'e' } as const
const COMPLETE_START = { ...START, isComplete: true } as const
const DELTA: GenerationEvent = { type: 'delta', tokenIds: [1] }
const END = { type: 'end', finishReason: 'stop' } as const

/** Returns the versions of the start and the end of a response, whose engine changes its weights after dispatch. */
function stamp(
  batch: readonly GenerationEvent[],
  versions: [string | undefined, string | undefined],
  timesForgotten = 0,
) {
  const engine = { weightVersion: versions[0], timesForgotten: 0 }
  const stamps = new WeightStamp(engine)
  engine.weightVersion = versions[1]
  engine.timesForgotten = timesForgotten
  return stamps.stamp(batch).flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
}

t.test('a stream has the version at the time of its first event', async (t) => {
  t.same(stamp([START, DELTA], ['1', '1']), ['1'])
  t.same(stamp([START, DELTA], ['1', '2']), ['2'])
})

t.test('a complete response has the version at dispatch and that at its end', async (t) => {
  t.same(stamp([COMPLETE_START, DELTA, END], ['1', '1']), ['1', '1'])
  t.same(stamp([COMPLETE_START, DELTA, END], ['1', '2']), ['1', '2'])
})

t.test(
  'a complete response that was cut has a version only if it has not changed since dispatch',
  async (t) => {
    const cut = [COMPLETE_START, DELTA]
    t.same(stamp(cut, ['1', '1']), ['1'])
    t.same(stamp(cut, [undefined, '1']), ['1'])
    t.same(stamp(cut, ['1', '2']), [undefined])
    t.same(stamp(cut, ['1', '1'], 1), [undefined], 'the weights may have changed and changed back')
    t.same(
      stamp([{ ...COMPLETE_START, weightVersion: '1' }, DELTA], ['1', '2']),
      ['1'],
      'the engine reports it',
    )
  },
)
