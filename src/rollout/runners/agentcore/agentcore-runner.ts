import { randomBytes, randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'
import { isRecord } from '../../../base/json.ts'
import type { AgentResult, AgentRunner, AgentTask } from '../runner.ts'
import { AgentCoreEndpoint } from './endpoint.ts'
import { EnvelopeResults } from './envelope-results.ts'
import { AgentCoreError } from './errors.ts'
import { Ledger } from './ledger.ts'
import type { LimiterClock } from './rate-limiter.ts'
import { ResultBucket } from './result-bucket.ts'
import { ResultQueue } from './result-queue.ts'
import type { AgentCoreSession, ResultSource } from './result-source.ts'
import { S3Results } from './s3-results.ts'
import { SessionGate } from './session-gate.ts'
import { SessionStops } from './session-stops.ts'

export interface AgentCoreRunnerOptions {
  /** The ARN of the agent's runtime. Credentials come from the default provider chain of the AWS SDK. */
  arn: string
  /** The name of the runtime's endpoint. */
  qualifier?: string | undefined
  /** The default is `sqs` if there is a queue, `s3` if there is a bucket, otherwise `envelope`. */
  results?: 's3' | 'sqs' | 'envelope' | undefined
  bucket?: string | undefined
  /** The URL of the queue that S3 notifies of results. */
  queueUrl?: string | undefined
  /** The first part of the results' keys, unique to one run. */
  experiment?: string | undefined
  /** The API calls per second: starts, stops and polls together. */
  tps?: number
  /** The number of concurrent sessions. */
  maxSessions?: number
  /** The time limit from the session's admission to its result. */
  timeLimitMs?: number
  /** The folder of the ledger, which lists the sessions that were started and not stopped. */
  ledger?: string
  /** The interval at which the ledger is checked for sessions of dead processes. */
  lookAgainMs?: number
  /** The wait before a rejected API call is retried; it doubles each time. */
  retryBaseMs?: number
  /** Called with warnings for the user. Default: `process.emitWarning`. */
  warn?(text: string): void
  /** Returns a random number from 0 to 1; default: `Math.random`. */
  random?: () => number
  /**
   * The clock of the rate limiter. All runners of a runtime share the limiter, with the clock of the first one.
   * Default: the real time.
   */
  clock?: LimiterClock
}

const TPS = 25
const MAX_SESSIONS = 500
const TIME_LIMIT_MS = 30 * 60_000
const LEDGER = './agentcore-sessions'
const TAKE_OVER_INTERVAL_MS = 60_000
const RETRY_BASE_MS = 1_000
/** AgentCore's default endpoint. */
const DEFAULT_QUALIFIER = 'DEFAULT'
/** The maximum length of the rollout's session id within the id of the AgentCore session. */
const MAX_NAME_LENGTH = 100

/** A runner of agents in sessions of AWS Bedrock AgentCore Runtime; the agents report their rewards. */
export class AgentCoreRunner implements AgentRunner {
  readonly #endpoint: AgentCoreEndpoint
  readonly #results: ResultSource
  readonly #gate: SessionGate
  readonly #stops: SessionStops
  readonly #counts = new SessionCounts()
  readonly #timeLimitMs: number
  readonly #openLedger: () => Promise<Ledger>
  readonly #takeOverIntervalMs: number
  #takeOverTimer: NodeJS.Timeout | undefined
  #prepared: Promise<Ledger> | undefined

  /** @throws ProxyError `config_invalid` */
  constructor(options: AgentCoreRunnerOptions) {
    const { arn, qualifier = DEFAULT_QUALIFIER, maxSessions = MAX_SESSIONS, ledger = LEDGER } = options
    const { warn = (text) => process.emitWarning(text), random = Math.random } = options
    const retryBaseMs = options.retryBaseMs ?? RETRY_BASE_MS
    this.#endpoint = new AgentCoreEndpoint({
      ...{ arn, qualifier, retryBaseMs, random, tps: options.tps ?? TPS, clock: options.clock },
      // Each session may have one pending start, and one poll or stop.
      maxCalls: 2 * maxSessions,
      onThrottled: () => this.#counts.countThrottled(),
    })
    this.#results = createResultSource(options, this.#endpoint, { warn, random })
    this.#gate = new SessionGate(maxSessions)
    this.#stops = new SessionStops({ endpoint: this.#endpoint, retryBaseMs, random, warn })
    this.#timeLimitMs = options.timeLimitMs ?? TIME_LIMIT_MS
    this.#takeOverIntervalMs = options.lookAgainMs ?? TAKE_OVER_INTERVAL_MS
    this.#openLedger = () => Ledger.open(ledger, { arn, qualifier })
  }

  async prepare(signal: AbortSignal): Promise<void> {
    await this.#getLedger(signal)
  }

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const ledger = await this.#getLedger(signal)
    const leave = await this.#gate.enter(signal)
    this.#counts.countStart()
    const session = newSession(task)
    const limit = AbortSignal.timeout(this.#timeLimitMs)
    let result: AgentResult | undefined
    try {
      await ledger.recordOpened(session.id)
      result = await this.#results.run(session, AbortSignal.any([signal, limit]))
    } catch (error) {
      signal.throwIfAborted()
      if (limit.aborted) result = await this.#createTimeoutResult(session)
      else if (error instanceof AgentCoreError) result = error.result
      else throw error
    } finally {
      this.#counts.countEnd(result?.status === 'completed')
      // Releases the slot when the session has stopped: until then it counts towards the account's quota.
      if (session.mayExist) this.#stops.stop(session.id, ledger, leave)
      else await ledger.recordClosed(session.id).finally(leave)
    }
    return result
  }

  describe(): string {
    const { inside, waiting } = this.#gate
    return this.#counts.describe({ running: inside - this.#stops.size, waiting })
  }

  async close(): Promise<void> {
    clearInterval(this.#takeOverTimer)
    await this.#stops.close()
    await this.#results.close()
    await this.#endpoint.close()
    const ledger = await this.#prepared?.catch(() => undefined)
    await ledger?.close()
  }

  /** Checks a last time for a result, and otherwise returns the result of a session that exceeded its time limit. */
  async #createTimeoutResult(session: AgentCoreSession): Promise<AgentResult> {
    const createResult = (cause: string): AgentResult => {
      const error = `no result within ${this.#timeLimitMs / 1000} s: ${cause}`
      return { status: 'timeout', rewards: {}, error }
    }
    // A poll of a session that was not started would create it.
    if (!session.mayExist) return createResult('its session was not started')
    const late = await this.#results.checkOnce(session).catch(() => undefined)
    return late ?? createResult('the agent is still running, or AgentCore ended its session')
  }

  /** Returns the ledger. The first invocation prepares the runner, as does the first one after a failure. */
  #getLedger(signal: AbortSignal): Promise<Ledger> {
    this.#prepared ??= this.#prepare(signal).catch((error: unknown) => {
      this.#prepared = undefined
      throw error
    })
    return this.#prepared
  }

  async #prepare(signal: AbortSignal): Promise<Ledger> {
    await this.#endpoint.prepare()
    await this.#results.prepare(signal)
    const ledger = await this.#openLedger()
    for (const left of ledger.openSessions) this.#stops.stop(left, ledger)
    // Sessions are taken over repeatedly, because processes may die later, and those of other machines count as dead only
    // after a while.
    this.#takeOverTimer = setInterval(() => this.#takeOver(ledger), this.#takeOverIntervalMs).unref()
    return ledger
  }

  async #takeOver(ledger: Ledger): Promise<void> {
    const left = await ledger.takeOver().catch(() => [])
    for (const sessionId of left) this.#stops.stop(sessionId, ledger)
  }
}

interface ResultSourceDependencies {
  warn(text: string): void
  random: () => number
}

function createResultSource(
  options: AgentCoreRunnerOptions,
  endpoint: AgentCoreEndpoint,
  { warn, random }: ResultSourceDependencies,
): ResultSource {
  const { bucket: bucketName, queueUrl, experiment = `llm-proxy-${randomBytes(6).toString('hex')}` } = options
  const results = options.results ?? (queueUrl ? 'sqs' : bucketName ? 's3' : 'envelope')
  if (results === 'envelope') return new EnvelopeResults(endpoint)
  const { region } = endpoint
  if (bucketName === undefined) throw createMissingOptionError(results, '--agentcore-bucket')
  const bucket = new ResultBucket(bucketName, region)
  if (results === 's3') return new S3Results({ endpoint, bucket, experiment })
  if (queueUrl === undefined) throw createMissingOptionError(results, '--agentcore-queue')
  const queue = new ResultQueue({ url: queueUrl, region, experiment, random, warn })
  return new S3Results({ endpoint, bucket, queue, experiment })
}

function createMissingOptionError(results: string, flag: string): ProxyError {
  return new ProxyError('config_invalid', `results by ${results} need ${flag}, or choose another --results`)
}

function newSession(task: AgentTask): AgentCoreSession {
  const { sessionId, sample, openaiBaseUrl, apiKey, modelName, samplingParams } = task
  const name = sessionId.replace(/[^A-Za-z0-9]+/g, '-').slice(0, MAX_NAME_LENGTH)
  return {
    id: `llm-proxy-${name}-${randomUUID()}`,
    inputId: sessionId.replace(/[^A-Za-z0-9.~:-]/g, '-'),
    payload: isRecord(sample.payload) ? sample.payload : sample,
    model: { base_url: openaiBaseUrl, api_key: apiKey, model_id: modelName ?? 'default' },
    samplingParams,
    mayExist: false,
  }
}

const MINUTE_MS = 60_000

/** The counters of a runner's sessions. */
class SessionCounts {
  #started = 0
  #throttled = 0
  #done = 0
  #failed = 0
  /** The times at which the sessions of the last minute ended. */
  #lastMinute: number[] = []

  countStart(): void {
    this.#started += 1
  }

  countThrottled(): void {
    this.#throttled += 1
  }

  countEnd(isDone: boolean): void {
    if (isDone) this.#done += 1
    else this.#failed += 1
    this.#lastMinute.push(performance.now())
  }

  describe({ running, waiting }: { running: number; waiting: number }): string {
    const since = performance.now() - MINUTE_MS
    this.#lastMinute = this.#lastMinute.filter((atMs) => atMs > since)
    const sessions = `${this.#started} started, ${running} running, ${waiting} waiting, ${this.#done} done`
    const perMinute = `${this.#lastMinute.length} in the last minute`
    return `AgentCore: ${sessions}, ${this.#failed} failed, ${this.#throttled} calls throttled, ${perMinute}`
  }
}
