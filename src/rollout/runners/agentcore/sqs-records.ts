/** What S3 tells a queue: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html */
import Type from 'typebox'
import { Value } from 'typebox/value'
import { parseJson } from '../../../base/json.ts'

const Notification = Type.Object({ Records: Type.Array(Type.Unknown()) })
const TestEvent = Type.Object({ Service: Type.Literal('Amazon S3'), Event: Type.Literal('s3:TestEvent') })
const Record = Type.Object({
  eventName: Type.Optional(Type.String()),
  s3: Type.Object({
    bucket: Type.Object({ name: Type.String() }),
    object: Type.Object({ key: Type.String() }),
  }),
})

/**
 * The keys, as one asks S3 for them, of the objects that a message says were written; none in one that is about something
 * else, or no notification. A message that SNS passed on is read as well.
 */
export function writtenKeys(body: string): string[] {
  const message = parseJson(body)
  if (isFromSns(message)) return writtenKeys(message.Message)
  if (!Value.Check(Notification, message)) return []
  return message.Records.flatMap((record) => {
    if (!Value.Check(Record, record)) return []
    if (record.eventName !== undefined && !record.eventName.includes('ObjectCreated')) return []
    const key = decodeKey(record.s3.object.key)
    return key === undefined ? [] : [key]
  })
}

/** Whether it is S3's word to a new queue, which is about no object and for nobody. */
export function isTestEvent(body: string): boolean {
  const message = parseJson(body)
  return isFromSns(message) ? isTestEvent(message.Message) : Value.Check(TestEvent, message)
}

/**
 * The AgentCore session whose result is at a key: the last part is `{session}.json`, or `{input}_{session}.json` as
 * older apps write it. Our sessions' ids have no `_` in them.
 */
export function parseSessionId(key: string): string {
  const name = key.slice(key.lastIndexOf('/') + 1).replace(/\.json$/, '')
  return name.slice(name.lastIndexOf('_') + 1)
}

const SnsEnvelope = Type.Object({ Type: Type.Literal('Notification'), Message: Type.String() })

function isFromSns(message: unknown): message is { Message: string } {
  return Value.Check(SnsEnvelope, message)
}

/** Percent-encoded, with a space as `+`. */
function decodeKey(key: string): string | undefined {
  try {
    return decodeURIComponent(key.replaceAll('+', ' '))
  } catch {
    return undefined
  }
}
