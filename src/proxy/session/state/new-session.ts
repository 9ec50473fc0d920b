/** What a session is created with. */
import { ProxyError } from '../../../base/errors.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { EditedCalls, SessionLimits } from '../../store/port/turn-store.ts'
import { readPolicies } from './policies.ts'

export interface NewSessionRequest {
  /** Generated when absent. */
  sessionId?: string | undefined
  metadata?: Record<string, unknown> | undefined
  samplingParams?: Record<string, unknown> | undefined
  /** Whether an agent that has no more than the session's key is heard on its own record. Absent: it is not. */
  trustAgent?: boolean | undefined
  /**
   * What its turns are recorded with beyond ids and logprobs: `top_logprobs:64`. Absent: what the proxy records of any.
   */
  record?: readonly string[] | undefined
  /** The model of all calls, or of each line's; see {@link readPolicies}. Absent: what the agent asks for. */
  policy?: string | Record<string, string> | undefined
  /** What becomes of calls that its agent edits. Absent: as the proxy has it. */
  editedCalls?: EditedCalls | undefined
  /** Budgets. Absent: as the proxy has it. */
  limits?: SessionLimits | undefined
  /** null: for ever. Absent: the default. */
  ttlMs?: number | null | undefined
  /** What its agent's key must have in it. Absent: any key of the session's name is good. */
  keyTag?: string | undefined
}

/** The limit on metadata as JSON: every list of sessions returns it, up to a thousand sessions a page. */
const MAX_METADATA_BYTES = 64 * 1024

/** @throws ProxyError `invalid_request`, `unsupported`: no session can be created with this */
export function checkNewSession({ metadata, samplingParams, record, policy }: NewSessionRequest): void {
  rejectLargeMetadata(metadata)
  refuseContent(samplingParams)
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

/** What an agent says is its own: a session overrides how it is answered, never what is asked or how many answers. */
function refuseContent(samplingParams: Record<string, unknown> = {}): void {
  for (const field of ['messages', 'tools', 'prompt', 'stream']) {
    if (!(field in samplingParams)) continue
    const message = `'sampling_params' cannot hold '${field}': it overrides how an agent is answered, not what it asks`
    throw new ProxyError('invalid_request', message, { param: `sampling_params.${field}` })
  }
  if ((samplingParams.n ?? 1) !== 1) {
    const message = "'sampling_params.n' must be 1: how many answers there are, the agent says"
    throw new ProxyError('unsupported', message, { param: 'sampling_params.n' })
  }
}
