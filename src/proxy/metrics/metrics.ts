/**
 * All metrics. Each label has few values: never the id of a session, task or trial, a model name that an agent sent, or
 * the text of an error. The table in docs/metrics.md is generated from these definitions.
 */
import { Counter, Gauge, Histogram, type MetricFamily } from './families.ts'

/*
 * The buckets of the next three lists are those of vLLM (`vllm/v1/metrics/loggers.py`), so that distributions of the
 * proxy and of its engines can be compared.
 */
const FIRST_TOKEN_S = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
  2560,
]
const PER_TOKEN_S = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
]
const REQUEST_S = [
  0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
]
const GAP_S = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]
const OVERHEAD_S = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5]
const QUEUE_S = [0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1200]
const DIFFERENCES = [0.0001, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
const COUNTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
const VERSIONS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64]
const REWARDS = [-1, -0.5, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 5, 10]

/** The metric families of one proxy. */
export class Metrics {
  readonly families: MetricFamily[] = []

  readonly turns = this.#counter('turns_total', 'Turns that ended, by dialect and outcome', [
    'dialect',
    'outcome',
  ])
  readonly turnErrors = this.#counter(
    'turn_errors_total',
    'Turns that failed or were aborted, by error code',
    ['code'],
  )
  readonly httpErrors = this.#counter('http_errors_total', 'HTTP requests that failed, by error code', [
    'code',
  ])
  readonly finishReasons = this.#counter('finish_reasons_total', 'Completed turns, by finish reason', [
    'reason',
  ])
  readonly inFlight = this.#gauge('turns_in_flight', 'Turns in progress, by phase', ['phase'])
  readonly retries = this.#counter(
    'client_retries_total',
    "Requests that an agent's client marked as a retry",
  )

  readonly answeredRetries = this.#counter(
    'answered_retries_total',
    'Retries that received the response of their original attempt',
    ['answer'],
  )

  readonly promptTokens = this.#counter('prompt_tokens_total', 'Prompt tokens of completed turns')
  readonly completionTokens = this.#counter('completion_tokens_total', 'Sampled tokens of completed turns')
  readonly duration = this.#histogram(
    'turn_duration_seconds',
    'Time from the request until its turn is committed',
    REQUEST_S,
  )
  readonly firstToken = this.#histogram(
    'time_to_first_token_seconds',
    'Time from the request to the first chunk of a streamed response',
    FIRST_TOKEN_S,
  )
  readonly perToken = this.#histogram(
    'time_per_output_token_seconds',
    'Mean time between tokens of a streamed response',
    PER_TOKEN_S,
  )
  readonly longestGap = this.#histogram(
    'stream_longest_gap_seconds',
    'Longest pause of the engine within a streamed response',
    GAP_S,
  )
  readonly overhead = this.#histogram(
    'overhead_seconds',
    'Time per turn spent in the proxy itself, by part of the turn',
    OVERHEAD_S,
    ['part'],
  )

  readonly inexact = this.#counter(
    'inexact_turns_total',
    'Completed turns that cannot be trained on, by reason',
    ['reason'],
  )
  readonly echoes = this.#counter(
    'changed_echoes_total',
    'Turns whose agent had changed the tool calls that it had received, by what was changed',
    ['kind'],
  )
  readonly adaptedEfforts = this.#counter(
    'reasoning_efforts_adapted_total',
    'Turns whose reasoning effort the model rejects, by the effort requested and the one sent',
    ['requested', 'sent'],
  )
  readonly rollouts = this.#gauge('rollouts', 'Rollouts of `--runner`, by state', ['state'])
  readonly rolloutsEnded = this.#counter(
    'rollouts_total',
    'Rollouts of `--runner` that have ended, by outcome',
    ['outcome'],
  )
  readonly rolloutSeconds = this.#counter(
    'rollout_seconds_total',
    'Duration of ended rollouts of `--runner` in seconds, without the queue wait',
  )
  readonly rolloutTries = this.#counter(
    'rollout_tries_total',
    'Times that rollouts of `--runner` ran their agent',
  )
  readonly prompts = this.#counter('prompts_total', 'Prompts, by how they were built', ['reason'])
  readonly reusedTokens = this.#counter(
    'prompt_tokens_reused_total',
    'Prompt tokens taken from an earlier turn (token mode)',
  )
  readonly renderedTokens = this.#counter(
    'prompt_tokens_rendered_total',
    'Prompt tokens rendered and tokenized, not reused (token mode)',
  )
  readonly lines = this.#counter('turns_by_line_total', 'Turns that ended, by agent role', ['line'])
  readonly weightInfo = this.#gauge(
    'weight_version_info',
    'Weight version that an engine or worker reports',
    ['member', 'weight_version'],
  )
  readonly weightChanges = this.#counter(
    'weight_change_turns_total',
    'Turns sampled from more than one weight version',
  )

  readonly rowStaleness = this.#histogram(
    'row_staleness_versions',
    'Age of a row when it was read, in weight versions',
    VERSIONS,
  )
  readonly unversionedRows = this.#counter(
    'rows_unversioned_total',
    'Rows read that have tokens of an unknown weight version',
  )

  readonly verified = this.#counter('verified_turns_total', 'Turns sampled for verification, by verdict', [
    'verdict',
  ])
  readonly verifiedDifference = this.#histogram(
    'verified_mean_difference',
    "Mean difference of a verified turn's recorded logprobs from the engine's, in nats",
    DIFFERENCES,
  )
  readonly verifyControls = this.#counter(
    'verify_controls_total',
    'Negative controls sent to verifying engines, by whether the engine detected them',
    ['caught'],
  )

  readonly sessionsCreated = this.#counter('sessions_created_total', 'Sessions created')
  readonly sessionsActive = this.#gauge('sessions_active', 'Sessions that have not ended')
  readonly sessionsEnded = this.#counter('sessions_ended_total', 'Sessions that ended, by status', ['status'])
  readonly sessionTurns = this.#histogram('session_turns', 'Turns per session, when it ended', COUNTS)
  readonly reward = this.#histogram('session_reward', 'Rewards set', REWARDS)

  readonly queueDepth = this.#gauge('queue_depth', 'Requests waiting for an engine or worker')
  readonly queueWait = this.#histogram(
    'queue_wait_seconds',
    'Time that a request waited for an engine or worker',
    QUEUE_S,
  )
  readonly queueRefusals = this.#counter(
    'queue_refusals_total',
    'Requests rejected while waiting for an engine or worker, by error code',
    ['code'],
  )
  readonly paused = this.#gauge('paused', '1 while the proxy is paused')
  readonly memberUp = this.#gauge('member_up', '1 if the engine or worker is healthy', ['member'])
  readonly memberUnavailable = this.#gauge(
    'member_unavailable',
    '1 while the engine, or every engine of the worker, is asleep or paused',
    ['member'],
  )
  readonly memberEjected = this.#gauge(
    'member_ejected',
    '1 while the engine or worker gets no requests because its last ones failed',
    ['member'],
  )
  readonly memberCalls = this.#gauge(
    'member_calls_in_flight',
    'Requests in progress at an engine or worker',
    ['member'],
  )
  readonly memberCapacity = this.#gauge(
    'member_capacity',
    'Maximum number of concurrent requests of an engine or worker',
    ['member'],
  )
  readonly failovers = this.#counter(
    'failovers_total',
    'Requests that moved to another engine or worker after a failure',
  )
  readonly ejections = this.#counter(
    'ejections_total',
    'Ejections of engines and workers whose last requests failed',
  )
  readonly moves = this.#counter(
    'session_moves_total',
    'Sessions that moved away from the engine or worker with their prefix cache',
  )
  readonly connections = this.#counter('worker_connections_total', 'Worker connections accepted')

  readonly commitOperations = this.#histogram('commit_operations', 'Operations per commit', COUNTS)
  readonly commitTime = this.#histogram(
    'commit_seconds',
    'Time from the first change of a commit until it is durable',
    OVERHEAD_S,
  )
  readonly databaseBytes = this.#gauge('database_bytes', 'Size of the database files', ['file'])
  readonly storeFailures = this.#counter(
    'store_failures_total',
    'Changes that could not be written to the database',
  )

  readonly buildInfo = this.#gauge('build_info', 'Version, mode and Node.js of this proxy; always 1', [
    'version',
    'mode',
    'node',
  ])
  readonly loopDelay = this.#gauge(
    'event_loop_delay_seconds',
    'Delay of the event loop since the previous scrape',
    ['stat'],
  )
  readonly heapBytes = this.#gauge('heap_used_bytes', 'JavaScript heap in use')
  // The next four metrics have the standard names of Prometheus client libraries, without the prefix of the proxy.
  readonly cpuSeconds = this.#add(
    new Counter({ name: 'process_cpu_seconds_total', help: 'CPU time of all threads' }),
  )
  readonly residentBytes = this.#add(
    new Gauge({ name: 'process_resident_memory_bytes', help: 'Resident memory' }),
  )
  readonly startTime = this.#add(
    new Gauge({
      name: 'process_start_time_seconds',
      help: 'Start time of the process, in seconds since the epoch',
    }),
  )
  readonly openFiles = this.#add(
    new Gauge({ name: 'process_open_fds', help: 'Open files and sockets; Linux only' }),
  )

  #counter(name: string, help: string, labelNames: string[] = []): Counter {
    return this.#add(new Counter({ name: `llm_proxy_${name}`, help, labelNames }))
  }

  #gauge(name: string, help: string, labelNames: string[] = []): Gauge {
    return this.#add(new Gauge({ name: `llm_proxy_${name}`, help, labelNames }))
  }

  #histogram(name: string, help: string, buckets: readonly number[], labelNames: string[] = []): Histogram {
    return this.#add(new Histogram({ name: `llm_proxy_${name}`, help, buckets, labelNames }))
  }

  #add<T extends MetricFamily>(family: T): T {
    this.families.push(family)
    return family
  }
}
