import fc from 'fast-check'
import t from 'tap'
import {
  isTestEvent,
  parseSessionId,
  parseWrittenKeys,
} from '../../../../../src/rollout/runners/agentcore/sqs-records.ts'

const record = (key: string, eventName = 'ObjectCreated:Put') => ({
  eventSource: 'aws:s3',
  eventName,
  s3: { bucket: { name: 'b' }, object: { key, size: 3 } },
})
const createBody = (...Records: object[]) => JSON.stringify({ Records })

t.test('keys are decoded: percent signs and plus signs', async (t) => {
  t.strictSame(parseWrittenKeys(createBody(record('e%2Fi%7E2%2Fs.json'), record('a+b/%2B.json'))), [
    'e/i~2/s.json',
    'a b/+.json',
  ])
})

t.test(
  'the test event of a new queue, other events and those of other services have no objects',
  async (t) => {
    for (const body of [
      JSON.stringify({ Service: 'Amazon S3', Event: 's3:TestEvent', Bucket: 'b' }),
      createBody(record('k', 'ObjectRemoved:Delete')),
      createBody({ eventSource: 'aws:s3' }, {}),
      createBody(record('%E0%A4%A')),
      'hello',
      'null',
      createBody({ s3: { object: { key: 'e/i/s.json' } } }),
      '[]',
      '',
    ]) {
      t.strictSame(parseWrittenKeys(body), [])
    }
  },
)

t.test('a message forwarded by SNS is read', async (t) => {
  const body = JSON.stringify({ Type: 'Notification', Message: createBody(record('e/i/s.json')) })
  t.strictSame(parseWrittenKeys(body), ['e/i/s.json'])
})

t.test('no text makes it throw, and any key is decoded', async (t) => {
  fc.assert(fc.property(fc.string({ unit: 'binary' }), (body) => Array.isArray(parseWrittenKeys(body))))
  fc.assert(fc.property(fc.json(), (body) => Array.isArray(parseWrittenKeys(body))))
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), (key) => {
      const [written] = parseWrittenKeys(createBody(record(encodeURIComponent(key).replaceAll('%20', '+'))))
      return written === key
    }),
  )
  t.pass('neither fails')
})

t.test('the session is the end of the last segment of the key', async (t) => {
  t.equal(parseSessionId('exp/input_1/llm-proxy-a-1.json'), 'llm-proxy-a-1')
  t.equal(parseSessionId('exp/in_put_llm-proxy-a-1.json'), 'llm-proxy-a-1')
  t.equal(parseSessionId('other'), 'other')
})

t.test("the test event of a new queue is distinguished from others' messages", async (t) => {
  const event = JSON.stringify({ Service: 'Amazon S3', Event: 's3:TestEvent', Bucket: 'b' })
  t.ok(isTestEvent(event))
  t.ok(isTestEvent(JSON.stringify({ Type: 'Notification', Message: event })))
  for (const body of [
    '{"job": "of somebody else"}',
    'hello',
    'null',
    '',
    createBody(),
    createBody(record('k')),
  ]) {
    t.notOk(isTestEvent(body))
  }
})
