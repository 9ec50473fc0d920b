/** The request for a new session, and its validation. */
import { ProxyError } from '../../../base/errors.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionLimits, ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import { readPolicies } from './policies.ts'

/** The properties of a new session. */
export interface NewSessionRequest {
  /** The session id. Absent: it is generated. */
  sessionId?: string | undefined
  metadata?: Record<string, unknown> | undefined
  samplingParams?: Record<string, unknown> | undefined
  /**
   * Whether request metadata (agent role, retry count) is trusted if the agent sends only the session's key. Default:
   * false.
   */
  trustAgent?: boolean | undefined
  /** The captured data besides ids and logprobs, such as `top_logprobs:64`. Absent: the proxy's default. */
  record?: readonly string[] | undefined
  /**
   * The model of all requests, or of each agent role; see {@link readPolicies}. Absent: the model that the agent
   * requests.
   */
  policy?: string | Record<string, string> | undefined
  /** The tool-call rewrite policy. Absent: the proxy's default. */
  editedCalls?: ToolCallRewritePolicy | undefined
  /** Whether a response continues after its engine request was cut. Absent: the proxy's default. */
  continueResponses?: boolean | undefined
  /** The budgets. Absent: the proxy's default. */
  limits?: SessionLimits | undefined
  /** The time to live; null: unlimited. Absent: the proxy's default. */
  ttlMs?: number | null | undefined
  /** The tag that the agent's key must contain. Absent: the key must have no tag. */
  keyTag?: string | undefined
}

/** The maximum size of metadata as JSON. Lists of sessions include it, with up to a thousand sessions per page. */
const MAX_METADATA_BYTES = 64 * 1024

/** Validates the properties of a new session. @throws ProxyError `invalid_request`, `unsupported` */
export function checkNewSession({ metadata, samplingParams, record, policy }: NewSessionRequest): void {
  rejectLargeMetadata(metadata)
  rejectContent(samplingParams)
  if (record) parseCaptureOptions(record)
  readPolicies(policy)
}

function rejectLargeMetadata(metadata: Record<string, unknown> = {}): void {
  const bytes = Buffer.byteLength(JSON.stringify(metadata))
  if (bytes <= MAX_METADATA_BYTES) return
  const limit = `${MAX_METADATA_BYTES / 1024} KiB`
  const message = `'metadata' has ${bytes} bytes as JSON, and the limit is ${limit}: store an id, and the data elsewhere`
  throw new ProxyError('invalid_request', message, { param: 'metadata' })
}

/**
 * Rejects sampling parameters that only the agent may set: a session overrides how its requests are sampled, but not
 * their content or their number of completions.
 */
function rejectContent(samplingParams: Record<string, unknown> = {}): void {
  for (const field of ['messages', 'tools', 'prompt', 'stream']) {
    if (!(field in samplingParams)) continue
    const message = `'sampling_params' cannot contain '${field}': it overrides how requests are sampled, not their content`
    throw new ProxyError('invalid_request', message, { param: `sampling_params.${field}` })
  }
  if ((samplingParams.n ?? 1) !== 1) {
    const message = "'sampling_params.n' must be 1: only the agent sets the number of completions"
    throw new ProxyError('unsupported', message, { param: 'sampling_params.n' })
  }
}
