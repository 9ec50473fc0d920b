/** S3's notifications: https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html */
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
 * Returns the decoded keys of the objects whose creation a message reports; none for other events, or if it is not a
 * notification. Messages that SNS forwarded are supported, too.
 */
export function parseWrittenKeys(body: string): string[] {
  const message = parseJson(body)
  if (isFromSns(message)) return parseWrittenKeys(message.Message)
  if (!Value.Check(Notification, message)) return []
  return message.Records.flatMap((record) => {
    if (!Value.Check(Record, record)) return []
    if (record.eventName !== undefined && !record.eventName.includes('ObjectCreated')) return []
    const key = decodeKey(record.s3.object.key)
    return key === undefined ? [] : [key]
  })
}

/** Returns whether a message is the test event that S3 sends to a new queue, which concerns no object. */
export function isTestEvent(body: string): boolean {
  const message = parseJson(body)
  return isFromSns(message) ? isTestEvent(message.Message) : Value.Check(TestEvent, message)
}

/**
 * Returns the AgentCore session whose result is at a key: the last part is `{session}.json`, or
 * `{input}_{session}.json` from older apps. The ids of the runner's sessions contain no `_`.
 */
export function parseSessionId(key: string): string {
  const name = key.slice(key.lastIndexOf('/') + 1).replace(/\.json$/, '')
  return name.slice(name.lastIndexOf('_') + 1)
}

const SnsEnvelope = Type.Object({ Type: Type.Literal('Notification'), Message: Type.String() })

function isFromSns(message: unknown): message is { Message: string } {
  return Value.Check(SnsEnvelope, message)
}

/** Decodes a percent-encoded key, in which `+` is a space. */
function decodeKey(key: string): string | undefined {
  try {
    return decodeURIComponent(key.replaceAll('+', ' '))
  } catch {
    return undefined
  }
}
