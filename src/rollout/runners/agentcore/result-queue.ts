/** Reads S3's notifications of results from an SQS queue. */
import type { Message, SQSClient } from '@aws-sdk/client-sqs'
import { ProxyError } from '../../../base/errors.ts'
import { importOptionalPackage } from '../../../base/optional-package.ts'
import { computeBackoffMs, pause } from '../../backoff.ts'
import { isTestEvent, parseSessionId, parseWrittenKeys } from './sqs-records.ts'

export interface ResultQueueOptions {
  url: string
  region: string
  /** The first part of the keys of this run's results. Messages with other keys are left in the queue. */
  experiment: string
  /** Returns a random number from 0 to 1, as `Math.random` does. */
  random: () => number
  warn(text: string): void
}

const LONG_POLL_S = 20
/** Messages for other readers become visible to them again after this time. */
const VISIBILITY_TIMEOUT_S = 30
const BATCH_SIZE = 10
const RETRY_BASE_MS = 1_000
/** The number of consecutive failures before the user is warned. */
const WARN_AFTER = 3

/** A reader of the queue, which polls while results are expected. */
export class ResultQueue {
  readonly url: string
  readonly #options: ResultQueueOptions
  readonly #expected = new Map<string, (key: string) => void>()
  readonly #closing = new AbortController()
  #reading: Promise<void> | undefined
  #opened: Promise<{ sdk: typeof import('@aws-sdk/client-sqs'); client: SQSClient }> | undefined

  constructor(options: ResultQueueOptions) {
    this.url = options.url
    this.#options = options
  }

  /** Checks that the queue can be read. @throws ProxyError `config_invalid` */
  async prepare(signal: AbortSignal): Promise<void> {
    const { sdk, client } = await this.#open()
    const command = new sdk.GetQueueAttributesCommand({ QueueUrl: this.url, AttributeNames: ['QueueArn'] })
    try {
      await client.send(command, { abortSignal: signal })
    } catch (cause) {
      signal.throwIfAborted()
      throw new ProxyError('config_invalid', `the queue ${this.url} cannot be read`, { cause })
    }
  }

  /** Waits for a message about the session's result. @returns the key of the result's object */
  waitForKey(sessionId: string): Promise<string> {
    const { promise, resolve } = Promise.withResolvers<string>()
    this.#expected.set(sessionId, resolve)
    this.#reading ??= this.#read()
    return promise
  }

  forget(sessionId: string): void {
    this.#expected.delete(sessionId)
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#reading
    const opened = await this.#opened?.catch(() => undefined)
    opened?.client.destroy()
  }

  async #read(): Promise<void> {
    const { signal } = this.#closing
    let failures = 0
    while (this.#expected.size > 0 && !signal.aborted) {
      try {
        await this.#readOnce(signal)
        failures = 0
      } catch (error) {
        if (signal.aborted) break
        failures += 1
        if (failures === WARN_AFTER) {
          this.#options.warn(`the queue cannot be read, S3 is polled instead: ${(error as Error).message}`)
        }
        await pause(computeBackoffMs(RETRY_BASE_MS, failures, this.#options.random), signal).catch(() => {})
      }
    }
    // Runs synchronously after the last check of the expected results, so that the next `waitForKey` starts a new loop.
    this.#reading = undefined
  }

  async #readOnce(signal: AbortSignal): Promise<void> {
    const { sdk, client } = await this.#open()
    const receive = new sdk.ReceiveMessageCommand({
      QueueUrl: this.url,
      MaxNumberOfMessages: BATCH_SIZE,
      WaitTimeSeconds: LONG_POLL_S,
      VisibilityTimeout: VISIBILITY_TIMEOUT_S,
    })
    const { Messages = [] } = await client.send(receive, { abortSignal: signal })
    const read = Messages.filter((message) => this.#deliver(message))
    if (read.length === 0) return
    const Entries = read.map(({ ReceiptHandle }, index) => ({ Id: String(index), ReceiptHandle }))
    // The deletion is not cancelled, because the last result may end the run meanwhile. A message that is not deleted
    // is redelivered and then ignored.
    const remove = new sdk.DeleteMessageBatchCommand({ QueueUrl: this.url, Entries })
    await client.send(remove)
  }

  /**
   * Notifies the sessions that wait for the results of a message.
   * @returns whether the message can be deleted: true also for duplicates, and for results that no session waits for
   */
  #deliver({ Body = '' }: Message): boolean {
    const keys = parseWrittenKeys(Body)
    const isOurs = (key: string) => key.startsWith(`${this.#options.experiment}/`)
    for (const key of keys.filter(isOurs)) this.#expected.get(parseSessionId(key))?.(key)
    // A message without keys of this experiment may belong to another program.
    return keys.length > 0 ? keys.every(isOurs) : isTestEvent(Body)
  }

  #open() {
    this.#opened ??= importOptionalPackage(
      '@aws-sdk/client-sqs',
      'A queue of results',
      () => import('@aws-sdk/client-sqs'),
    ).then((sdk) => ({
      sdk,
      client: new sdk.SQSClient({ region: parseRegion(this.url) ?? this.#options.region }),
    }))
    return this.#opened
  }
}

/** Returns the region of a queue's URL, such as `us-west-2` of `https://sqs.us-west-2.amazonaws.com/…`. */
function parseRegion(url: string): string | undefined {
  return /^https?:\/\/(?:sqs(?:-fips)?|queue)\.([a-z0-9-]+)\.(?:amazonaws|api\.aws)/.exec(url)?.[1]
}
