/** The properties of a new session. */
import { ProxyError } from '../../../base/errors.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionLimits, ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import { readPolicies } from './policies.ts'

export interface NewSessionRequest {
  /** Absent: generated. */
  sessionId?: string | undefined
  metadata?: Record<string, unknown> | undefined
  samplingParams?: Record<string, unknown> | undefined
  /**
   * Whether metadata that an agent sends with only the session's key (role, retry count) is trusted. Default: false.
   */
  trustAgent?: boolean | undefined
  /** The data to record beyond ids and logprobs: `top_logprobs:64`. Absent: the proxy's default. */
  record?: readonly string[] | undefined
  /**
   * The model of all requests, or of each agent role's; see {@link readPolicies}. Absent: the model that the agent
   * requests.
   */
  policy?: string | Record<string, string> | undefined
  /** The rewrite policy for tool calls that its agent edits. Absent: the proxy's default. */
  editedCalls?: ToolCallRewritePolicy | undefined
  /** Whether a response continues after its engine request was cut. Absent: the proxy's default. */
  continueResponses?: boolean | undefined
  /** Budgets. Absent: the proxy's default. */
  limits?: SessionLimits | undefined
  /** The time to live; null: unlimited. Absent: the proxy's default. */
  ttlMs?: number | null | undefined
  /** The tag that its agent's key must contain. Absent: any key of the session's name is valid. */
  keyTag?: string | undefined
}

/** The limit on metadata as JSON: every list of sessions returns it, up to a thousand sessions a page. */
const MAX_METADATA_BYTES = 64 * 1024

/** @throws ProxyError `invalid_request`, `unsupported`: no session can be created with these properties */
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
 * Rejects parameters that only the agent may set: a session overrides how its requests are sampled, never their content
 * or the number of completions.
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
