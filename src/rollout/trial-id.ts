import { randomBytes } from 'node:crypto'
import type { Sample } from './runners/runner.ts'

/** Leaves room for the random part and the number of the try within what names of files and sessions take. */
const LONGEST_PREFIX = 160

/** The row's `instance_id`; undefined when it has none. */
export function getInstanceId({ instance_id: id }: Sample): string | undefined {
  return typeof id === 'string' || typeof id === 'number' ? String(id) : undefined
}

/** `instance_id` and something random. What is not plain in a URL, a file's name and a shell becomes `_`. */
export function newTrialId(sample: Sample): string {
  const name = (getInstanceId(sample) ?? 'trial').replace(/[^A-Za-z0-9._~:-]/g, '_').slice(0, LONGEST_PREFIX)
  return `${name}-${randomBytes(8).toString('hex')}`
}

/**
 * The session of a try. Each has its own: a call that an agent of an earlier try still makes, from a container or a
 * machine where nobody can stop it, must not land in the record of a later one.
 */
export function createSessionId(trialId: string, tryNumber: number): string {
  return tryNumber === 1 ? trialId : `${trialId}~${tryNumber}`
}
