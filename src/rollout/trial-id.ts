import { randomBytes } from 'node:crypto'
import type { Sample } from './runners/runner.ts'

/** The maximum length of the name in an id, which leaves room for the random part and the attempt number. */
const LONGEST_PREFIX = 160

/** Returns the row's `instance_id`; undefined if it has none. */
export function getInstanceId({ instance_id: id }: Sample): string | undefined {
  return typeof id === 'string' || typeof id === 'number' ? String(id) : undefined
}

/** Creates an id from `instance_id` and a random part. Characters special in a URL, file name or shell become `_`. */
export function createTrialId(sample: Sample): string {
  const name = (getInstanceId(sample) ?? 'trial').replace(/[^A-Za-z0-9._~:-]/g, '_').slice(0, LONGEST_PREFIX)
  return `${name}-${randomBytes(8).toString('hex')}`
}

/**
 * Returns the session id of an attempt. Each attempt has its own session, because the agent of an earlier attempt may
 * still send requests from a container or machine where it cannot be stopped.
 */
export function createSessionId(trialId: string, tryNumber: number): string {
  return tryNumber === 1 ? trialId : `${trialId}~${tryNumber}`
}
