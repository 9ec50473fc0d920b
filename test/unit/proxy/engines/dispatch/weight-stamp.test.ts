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
  const engine = { weightVersion: versions[0], timesForgotten: 0, timesUpdated: 0 }
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

t.test('a stream that is cut reports whether the weights have changed since its start', async (t) => {
  type Engine = ConstructorParameters<typeof WeightStamp>[0]
  const isChanged = (start: GenerationEvent, change: Partial<Engine>, atStart: Partial<Engine> = {}) => {
    const engine = { weightVersion: '1', timesForgotten: 0, timesUpdated: 0, ...atStart }
    const stamps = new WeightStamp(engine)
    stamps.stamp([start, DELTA])
    Object.assign(engine, change)
    stamps.stamp([DELTA])
    return stamps.haveWeightsChanged
  }
  t.equal(isChanged(START, {}), false)
  t.equal(isChanged(START, { weightVersion: '2' }), true)
  const forgotten = { weightVersion: undefined, timesForgotten: 1 }
  t.equal(isChanged(START, forgotten), false, 'another request of the engine failed at the same time')
  t.equal(isChanged(START, { ...forgotten, timesUpdated: 1 }), true, 'a trainer may have updated them')
  t.equal(isChanged(START, { timesForgotten: 2, timesUpdated: 1 }), false, 'it has not updated them')
  t.equal(isChanged(START, { weightVersion: '2' }, { weightVersion: undefined }), false, 'none is stated')
  const reported = { ...START, weightVersion: '2' }
  t.equal(isChanged(reported, {}), false, 'the engine reports a newer one than in its last health check')
  t.equal(isChanged(reported, { weightVersion: '2' }), false)
  t.equal(isChanged(reported, { weightVersion: '3' }), true)
})
