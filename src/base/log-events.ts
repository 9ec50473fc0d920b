/**
 * The catalogue of log events. A log line has the event's name in its field `event`. Names, levels and fields are
 * stable, so that alerts and log queries do not depend on the wording of messages. docs/logs.md lists the catalogue; a
 * test compares both.
 */
import { ERROR_CATALOGUE, type ErrorCode } from './errors.ts'
import type { ContextLogger, LogLevel } from './logger.ts'

/** The description of a field, and for the compiler the type of its value. */
interface Field<T> {
  doc: string
  value?: T
}

const field =
  <T>() =>
  (doc: string): Field<T> => ({ doc })
const text = field<string>()
const number = field<number>()
const error = field<unknown>()

/** All fields. A name has the same meaning in all events. */
export const LOG_FIELDS = {
  address: text('Network address of the client, or of the proxy that a worker connects to'),
  agent_role: text('[Agent role](lines.md), if the request declares one'),
  agent_status: text('Status that the agent ended with'),
  attempt: number('Number of the attempt, from 1: of the rollout, or of the turn at an engine or worker'),
  attempts: number('Number of times that the turn was dispatched'),
  by: text('Caller: `admin`, `run NAME`, or `open` if no keys are configured'),
  chars: number('Length of a text, or maximum length of content on a span, in characters'),
  close_code: number('WebSocket close code'),
  code: field<ErrorCode>()('[Error code](errors.md)'),
  command: text('Command that the process runs'),
  complete: field<boolean>()('Whether the complete response was sent'),
  db: text('Database, without its password'),
  dialect: text('API of the request, as in the turn'),
  efforts: field<readonly string[]>()('Reasoning efforts'),
  engine: text("Engine's URL, or `embedded`"),
  err: error('Error with its type, message and stack'),
  failed: number('Turns that failed in the last minute'),
  failures: number('Failed requests in a row'),
  files: field<readonly string[]>()('Names of files'),
  first_token_ms: number('Time from the opening of the turn to its first token'),
  for_ms: number('Duration of the ejection'),
  frame: text('Type of the frame'),
  from: number('Schema version before the migration'),
  grace_ms: number('Time within which running requests may finish'),
  health_url: text('URL of `--health-port`'),
  hint: text('Likely cause'),
  host: text('Host name'),
  in_flight: number('Turns in progress'),
  joined_retries: number('Retries that received the response while the turn was in flight'),
  known_messages: number(
    'Messages at the start of the request that a completed turn with the same tools also has',
  ),
  left_out: number('Failures of the session that were not logged since its previous line of this event'),
  limit_ms: number('`--pause-limit`'),
  lines: number('Log lines that could not be written'),
  logprobs_mode: text('Distribution that logprobs belong to, or `unknown`'),
  lost_spans: number('Spans that were not exported'),
  mean_difference: number('Mean difference of the logprobs, in nats'),
  member: text("Engine's URL or worker's id"),
  mode: text('`local` or `relay`'),
  model: text('Name of the model'),
  model_length: number("The model's context length, in tokens"),
  models: field<readonly string[]>()('Names of the models'),
  node: text('Name of the node'),
  note: text('Note for the operator'),
  parent_turn_id: text('Turn that the request continues'),
  paused_ms: number('Duration of the pause'),
  previous_state: text('Previous state'),
  prompt_format: field<object>()('Format of prompts, what chose it, and the evidence'),
  prompt_reason: text(
    'How the prompt was made, or why it branches: [list](token-mode.md#how-prompts-were-made)',
  ),
  prompt_tokens: number('Tokens of the prompt'),
  protocol: number('Version of the worker protocol'),
  proxy: text('URL of the proxy'),
  queue_ms: number('Time in the queue of engines or workers, over all attempts'),
  reason: text('Why the event occurred'),
  reasoning_efforts: field<object>()(
    'Efforts that the chat template accepts, and whether they change the prompt',
  ),
  rejected: number('Requests rejected since the previous line of this event'),
  request_id: text('Request id, as in the response header `x-request-id` of an error'),
  requests: number('Requests: in the last minute, or in flight at the worker'),
  retry_count: number('Earlier attempts of the request, as its client declares them'),
  reused_tokens: number('Recorded tokens that the prompt begins with'),
  route: text('Method and path pattern of the request'),
  sampled_tokens: number('Sampled tokens: of the turn, or in the last minute'),
  served_length: number('Context length that the engine serves, in tokens'),
  session_id: text('Session id'),
  sessions: number('Number of sessions'),
  signal: text('Name of the signal'),
  state: text('Current state, such as `serving`, `draining`, `asleep` or `closed`'),
  status: number('HTTP status'),
  text_sha256: text('SHA-256 of the text'),
  to: number('Schema version after the migration'),
  tool_parser: field<object>()('Parser of tool calls, what chose it, and the evidence'),
  total_ms: number('Time from the opening of the turn to its end'),
  trial_id: text('Id of the trial'),
  turn_id: text('Turn id, as in the response header `x-request-id`'),
  turn_index: number('Index of the turn in its session'),
  turn_status: text('`completed`, `aborted` or `failed`'),
  url: text('URL of the process or the node'),
  valid_to: text('End of validity'),
  version: text('Version of llm-proxy'),
  waiting: number('Requests that wait for an engine or worker'),
  warning: text('Description of the problem'),
  weight: number("The engine's share of requests, relative to the others'"),
  weight_version: field<string | number | null>()('Weight version; null if it was unset'),
  worker_id: text('Id of the worker'),
} as const

type LogField = keyof typeof LOG_FIELDS

/**
 * Returns a function that declares an event of this level. `code`: the level of the event's error code; `chosen`: the
 * level that the caller passes to {@link logEvent}.
 */
const at =
  (level: LogLevel | 'code' | 'chosen') =>
  <F extends LogField | `${LogField}?` = never>(message: string, ...fields: F[]) => ({
    level,
    message,
    fields,
  })
const debug = at('debug')
const info = at('info')
const audit = at('audit')
const warn = at('warn')
const severe = at('error')
const byCode = at('code')
const chosen = at('chosen')

/** The fields that identify a turn, or a retry of its request, in a log line. */
const REQUEST_IDS = ['session_id', 'request_id', 'turn_id'] as const

/** All events: the message, then the names of the fields. A field with `?` is optional. */
export const LOG_EVENTS = {
  server_started: info(
    'Server started',
    'command',
    'version',
    'url?',
    'mode?',
    'db?',
    'health_url?',
    'model?',
    'worker_id?',
  ),
  configuration_note: warn('Note on the configuration', 'note'),
  drain_started: info('Draining: new requests are rejected, running ones may finish', 'signal', 'grace_ms'),
  server_stopped: info('Server stopped'),
  drain_timed_out: warn('Server stopped; requests that exceeded the grace period were cancelled', 'grace_ms'),
  shutdown_failed: severe('Shutdown failed', 'err'),
  unexpected_error: severe('Unexpected error, exiting', 'err'),
  unhandled_error: warn('Uncaught error ignored: requests are expected to cause errors of this kind', 'err'),
  process_warning: warn('Warning of Node.js or a library', 'warning'),
  log_lines_lost: warn('Log lines were lost: writing failed, or the reader of the log was too slow', 'lines'),
  throughput: info(
    'Throughput of the last minute',
    'requests',
    'failed',
    'sampled_tokens',
    'in_flight',
    'waiting',
  ),
  database_lost: severe('Lost the database, exiting', 'err'),
  schema_migrated: info('Database schema migrated', 'from', 'to'),
  search_index_failed: warn('Search index is not up to date', 'err'),
  sweep_failed: severe('Deleting expired sessions failed', 'err'),
  sweep_deferred: warn('Deleting expired sessions is deferred', 'note'),
  turn_not_recorded: severe('Turn was not recorded', 'session_id', 'turn_id', 'err'),
  turn_not_updated: severe('Turn was not marked as undelivered', 'session_id', 'turn_id', 'err'),
  damaged_session_discarded: severe('Damaged session was discarded by a consumer', 'session_id', 'err'),
  node_joined: info('Node joined', 'node', 'url?'),
  node_left: info('Node drained and left', 'node', 'url?'),
  node_lost: warn('Node lost: its lease has expired', 'node', 'url?'),
  sessions_freed: info('Sessions of lost nodes freed; their open turns are interrupted', 'sessions'),
  node_state: debug('State of this node changed', 'previous_state', 'state'),
  node_expired: warn('This node could not renew its lease in time; its requests wait for the database'),
  node_renewed: info('This node renewed its lease, which had expired'),
  node_fenced: warn("This node's lease expired and was ended; it rejoined with empty caches"),
  node_engine_rejected: warn('Engine that another node registered is not used here', 'err'),
  engine_registered: info('Engine registered', 'engine', 'weight'),
  engine_removed: info('Engine removed by an admin', 'engine'),
  engine_retired: info('Engine out of service', 'engine'),
  engine_close_failed: warn('Closing an engine failed', 'engine', 'err'),
  engine_state: debug('Engine began to serve, to drain or to close', 'engine', 'previous_state', 'state'),
  engine_health: debug("An engine's health changed", 'engine', 'previous_state', 'state'),
  engine_up: info('Engine is up', 'engine', 'models'),
  engine_down: warn('Engine is down and receives no requests', 'engine', 'reason'),
  engine_available: info('Engine is awake', 'engine'),
  engine_unavailable: info('Engine is asleep or paused and receives no new requests', 'engine', 'state'),
  engine_warning: warn('Engine warning', 'engine', 'warning'),
  engine_warning_cleared: info('Engine warning cleared', 'engine'),
  member_ejected: warn(
    'Engine or worker ejected: its last requests failed',
    'member',
    'failures',
    'for_ms',
    'reason',
  ),
  member_readmitted: info('Engine or worker readmitted', 'member'),
  embedded_engine_retired: warn('Embedded engine retired: only registered engines serve from now on'),
  logprobs_mode_detected: info("Detected the engine's logprobs mode", 'engine', 'logprobs_mode'),
  efforts_rejected: info(
    'Engine rejects reasoning efforts; the nearest accepted one is sent',
    'member',
    'efforts',
  ),
  worker_state: debug("State of a worker's connection changed", 'worker_id', 'previous_state', 'state'),
  worker_connected: info('Worker connected', 'worker_id', 'protocol'),
  worker_resumed: info('Worker reconnected', 'worker_id'),
  worker_disconnected: info(
    'Worker disconnected; its requests wait for it',
    'worker_id',
    'reason',
    'requests',
  ),
  worker_cut_off: warn('Worker cut off by the proxy', 'worker_id', 'reason', 'requests'),
  worker_left: info('Worker removed; its requests move to others or fail', 'worker_id', 'reason', 'requests'),
  worker_connection_failed: severe(
    "Handling a worker's frame failed; its connection was ended",
    'worker_id?',
    'err',
  ),
  worker_rejected: warn('Worker rejected', 'reason', 'close_code', 'worker_id?'),
  worker_up: info('Worker is up', 'worker_id'),
  worker_down: warn('Worker is down and receives no requests', 'worker_id', 'reason'),
  worker_warning: warn('Worker warning', 'worker_id', 'warning'),
  worker_warning_cleared: info('Worker warning cleared', 'worker_id'),
  worker_frame_ignored: debug('Frame of a worker ignored', 'worker_id', 'frame', 'reason', 'request_id?'),
  proxy_resolved: info('Proxy found in DNS', 'host', 'address'),
  proxy_unresolved: info('Proxy no longer in DNS', 'host', 'address'),
  proxy_lookup_failed: warn("Looking up the proxies' name failed; retrying", 'host', 'err'),
  proxy_link_state: debug(
    'State of the link to a proxy changed',
    'worker_id',
    'proxy',
    'previous_state',
    'state',
    'address?',
  ),
  proxy_connected: info('Connected to proxy', 'worker_id', 'proxy', 'address?'),
  proxy_disconnected: warn(
    'No connection to proxy; retrying',
    'worker_id',
    'proxy',
    'close_code',
    'reason',
    'address?',
  ),
  proxy_rejected_worker: severe(
    'Proxy rejects this worker; retrying',
    'worker_id',
    'proxy',
    'close_code',
    'reason',
    'address?',
  ),
  proxy_connection_failed: severe(
    "Handling a proxy's frame failed; the connection was ended",
    'worker_id',
    'proxy',
    'err',
    'address?',
  ),
  proxy_frame_ignored: warn(
    'Frame of a proxy ignored: its type is unknown',
    'worker_id',
    'proxy',
    'frame',
    'address?',
    'request_id?',
  ),
  models_unknown: warn("Listing the engines' models failed", 'err'),
  worker_request_failed: severe(
    'Worker failed to handle a request',
    'worker_id',
    'proxy',
    'request_id',
    'err',
    'address?',
  ),
  paused: info('Paused: new requests wait until POST /admin/resume', 'limit_ms'),
  resumed: info('Resumed', 'paused_ms'),
  still_paused: warn('Still paused', 'paused_ms'),
  pause_limit_reached: warn(
    'Paused for longer than --pause-limit: requests are rejected until POST /admin/resume',
    'paused_ms',
  ),
  weight_version_set: info('Weight version set by an admin', 'weight_version'),
  request_failed: byCode(
    'Request failed',
    'code',
    'status',
    'request_id',
    'reason',
    'session_id?',
    'err?',
    'left_out?',
  ),
  request_unauthenticated: info(
    'Requests without a valid key rejected',
    'code',
    'status',
    'address',
    'reason',
    'rejected',
  ),
  request_accepted: debug('Request accepted', 'session_id', 'request_id', 'dialect'),
  retry_joined: debug('Retry joined the turn of its original attempt', ...REQUEST_IDS, 'retry_count'),
  response_redelivered: debug(
    'Retry receives the recorded response of its original attempt',
    ...REQUEST_IDS,
    'retry_count',
  ),
  turn_opened: debug('Turn opened', ...REQUEST_IDS, 'turn_index'),
  turn_matched: debug(
    "Prompt matched with the session's turns",
    ...REQUEST_IDS,
    'prompt_reason',
    'reused_tokens',
    'parent_turn_id?',
  ),
  turn_branched: debug(
    'Turn starts a branch: its prompt continues no turn of the session',
    ...REQUEST_IDS,
    'prompt_reason',
    'reused_tokens',
    'known_messages',
    'parent_turn_id?',
  ),
  turn_queued: debug('Turn waits for an engine or worker', ...REQUEST_IDS),
  turn_dispatched: debug('Turn dispatched', ...REQUEST_IDS, 'member', 'attempt', 'queue_ms'),
  turn_failed_over: debug(
    'Turn fails over to another engine or worker',
    ...REQUEST_IDS,
    'member',
    'code',
    'reason',
  ),
  turn_continued: debug(
    'Response continues after its engine request was cut',
    ...REQUEST_IDS,
    'code',
    'reason',
    'sampled_tokens',
  ),
  turn_first_token: debug('First token of the turn received', ...REQUEST_IDS, 'first_token_ms'),
  turn_committed: debug('Turn committed', ...REQUEST_IDS, 'turn_status'),
  turn_ended: chosen(
    'Turn ended',
    ...REQUEST_IDS,
    'turn_index',
    'dialect',
    'turn_status',
    'prompt_tokens',
    'reused_tokens',
    'sampled_tokens',
    'queue_ms',
    'total_ms',
    'attempts',
    'retry_count',
    'joined_retries',
    'agent_role?',
    'engine?',
    'code?',
    'first_token_ms?',
    'prompt_reason?',
  ),
  response_delivered: debug('Response sent, or its connection closed', ...REQUEST_IDS, 'status', 'complete'),
  admin_request: audit('Administrative request', 'route', 'by', 'address', 'status', 'session_id?'),
  certificate_renewed: info('New certificate in use', 'valid_to'),
  certificate_unusable: warn('New certificate is unusable; the previous one stays in use', 'reason'),
  tool_parser_chosen: info('Tool parser chosen', 'tool_parser'),
  tool_parser_uncertain: warn('Tool parser uncertain', 'tool_parser', 'warning'),
  prompt_format_chosen: info('Prompt format chosen', 'prompt_format'),
  efforts_probed: info('Reasoning efforts of the chat template probed', 'reasoning_efforts'),
  context_length_limited: warn(
    "Engine's context is shorter than the model's: limits are reduced; see --context-length",
    'served_length',
    'model_length',
  ),
  fast_tokenizer_disabled: severe(
    "Fast tokenizer disabled: its ids differ from Hugging Face's, which is used instead",
    'reason',
    'text_sha256?',
    'chars?',
    'err?',
  ),
  template_specialization_disabled: severe(
    'Specialized templates disabled: one differed from the template or the prompt encoder, which writes all prompts from now on',
  ),
  fast_tokenizer_missing: warn(
    'No Rust tokenizer for this platform: the JavaScript one is slower, and some text has other ids',
  ),
  model_files_missing: warn(
    "Files are missing in the hub's cache: end tokens or images may be unknown",
    'files',
  ),
  verified_turn_differs: warn(
    'Re-scored logprobs differ from the recorded ones; run llm-proxy verify',
    'session_id',
    'turn_id',
    'mean_difference?',
    'hint?',
  ),
  verify_control_missed: warn(
    'An engine scored a changed prompt like the original: verification with it proves nothing',
  ),
  verify_failed: debug('Turn could not be verified', 'code'),
  span_content_enabled: warn('Exported spans contain prompts and completions', 'chars'),
  tracing_disabled: warn('No spans are exported', 'reason'),
  span_export_failed: warn('Exporting spans fails; requests are unaffected', 'host', 'reason'),
  span_export_resumed: info('Exporting spans resumed', 'host', 'lost_spans'),
  agent_failed: warn(
    'Agent of a rollout failed',
    'trial_id',
    'session_id',
    'agent_status',
    'attempt',
    'reason?',
  ),
  runner_note: warn('Note on the runner', 'note'),
}

export type LogEventName = keyof typeof LOG_EVENTS

type LogFieldValue<F extends LogField> = (typeof LOG_FIELDS)[F] extends Field<infer T> ? T : never
type FieldNames<E extends LogEventName> = (typeof LOG_EVENTS)[E]['fields'][number]
type OptionalFieldNames<F> = F extends `${infer Name extends LogField}?` ? Name : never

/** The fields of an event, without those that a context logger adds. */
export type EventFields<E extends LogEventName, Context extends object = object> = {
  [F in Exclude<Extract<FieldNames<E>, LogField>, keyof Context>]: LogFieldValue<F>
} & { [F in Exclude<OptionalFieldNames<FieldNames<E>>, keyof Context>]?: LogFieldValue<F> | undefined }

/**
 * Logs an event of the catalogue at its level. Does nothing without a logger.
 * @param chosen the level of an event whose caller chooses it
 */
export function logEvent<E extends LogEventName, Context extends object>(
  logger: ContextLogger<Context> | undefined,
  event: E,
  fields: EventFields<E, Context>,
  chosen: LogLevel = 'debug',
): void {
  const { level: listed, message } = LOG_EVENTS[event]
  const level = listed === 'code' ? getErrorLevel(fields as object as { code: ErrorCode }) : listed
  const method = logger?.[level === 'chosen' ? chosen : level] ?? logger?.info
  method?.call(logger, { event, ...fields }, message)
}

function getErrorLevel({ code }: { code: ErrorCode }): LogLevel {
  const { log } = ERROR_CATALOGUE[code]
  return log === 'fatal' ? 'error' : log
}
