import t from 'tap'
import { NO_ENGINE } from '../../../../../src/protocol/canonical/events.ts'
import { formatTraceId, isTrace, parseTraceId } from '../../../../../src/proxy/session/trajectories/traces.ts'

t.test('a trace is the completion of a model', async (t) => {
  const turn = { status: 'completed', engine: 'vllm', finishReason: 'stop' } as const
  t.equal(isTrace(turn), true)
  t.equal(isTrace({ ...turn, engine: NO_ENGINE }), false, 'the end that an agent receives at a limit')
  t.equal(
    isTrace({ ...turn, engine: NO_ENGINE, finishReason: 'length' }),
    true,
    'a prompt that fills the context',
  )
  t.equal(isTrace({ ...turn, status: 'failed' }), false)
  t.equal(isTrace({ ...turn, status: 'open' }), false)
})

t.test('the id of a trace names session and turn, for any session id', async (t) => {
  for (const sessionId of ['s', 'a:b', ':', 'a/b'])
    t.strictSame(parseTraceId(formatTraceId({ sessionId, turnId: 't1' })), { sessionId, turnId: 't1' })
})
