/**
 * Policies: the model or adapter that samples the requests of a session, whatever model its agents request. Training
 * with several policies goes wrong silently if a request runs on the weights of another policy.
 */
import { ProxyError } from '../../../base/errors.ts'
import { type DeclaredRole, isDeclaredRole } from '../roles/agent-role.ts'

/** Names of models by agent role; `*` is the default of all roles. */
export type Policies = Readonly<Record<string, string>>

const ALL_LINES = '*'
const MAX_LINES = 64
const MAX_NAME_CHARS = 512

/**
 * @param policy one name for all roles, or names by role
 * @throws ProxyError `invalid_request`
 */
export function readPolicies(policy: string | Record<string, string> | undefined): Policies {
  if (policy === undefined) return {}
  const policies = typeof policy === 'string' ? { [ALL_LINES]: policy } : policy
  const entries = Object.entries(policies)
  if (entries.length > MAX_LINES) throw refused('policy', `'policy' names more than ${MAX_LINES} lines`)
  for (const [line, name] of entries) {
    if (line !== ALL_LINES && !isDeclaredRole(line)) {
      const lines = 'main, compaction, side, subagent, subagent:<name> or *'
      throw refused('policy', `'policy' names lines: ${lines}; there is no '${line.slice(0, 100)}'`)
    }
    if (name === '' || name.length > MAX_NAME_CHARS) {
      throw refused('policy', `the policy of '${line}' must be a name of 1 to ${MAX_NAME_CHARS} characters`)
    }
  }
  return policies
}

/**
 * Returns the policy of a request.
 * @param line the role that the request declares; the main role if it declares none
 * @returns undefined: the session names none for it
 */
export function findPolicy(policies: Policies, line: DeclaredRole = 'main'): string | undefined {
  return linesFor(line)
    .map((key) => policies[key])
    .find((name) => name !== undefined)
}

/** Returns the keys from the narrowest to the widest. The main role's policy samples summaries. */
function linesFor(line: DeclaredRole): string[] {
  if (line === 'compaction') return [line, 'main', ALL_LINES]
  return line.startsWith('subagent:') ? [line, 'subagent', ALL_LINES] : [line, ALL_LINES]
}

function refused(param: string, message: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}

/** Returns the policy that a stored turn was sampled with; null: none. */
export function policyOnRecord({ annotations }: { annotations: string }): string | null {
  // Most turns have none, so they are not parsed.
  if (!annotations.includes('"policy"')) return null
  const { policy } = JSON.parse(annotations) as { policy?: unknown }
  return typeof policy === 'string' ? policy : null
}
