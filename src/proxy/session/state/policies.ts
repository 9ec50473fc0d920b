/**
 * Policies: which model or adapter samples the calls of a session, whatever its agents ask for. Training with several
 * policies goes wrong in silence when one call runs on the weights of another.
 */
import { ProxyError } from '../../../base/errors.ts'
import { type DeclaredRole, isDeclaredRole } from '../roles/agent-role.ts'

/** Names of models by line; `*` is for every line that has none of its own. */
export type Policies = Readonly<Record<string, string>>

const ALL_LINES = '*'
const MAX_LINES = 64
const MAX_NAME_CHARS = 512

/**
 * @param policy one name for all lines, or names by line
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
 * The policy of a call.
 * @param line as the call tells it; one that tells none is taken for the main line's
 * @returns undefined: the session names none for it
 */
export function policyOf(policies: Policies, line: DeclaredRole = 'main'): string | undefined {
  return linesFor(line)
    .map((key) => policies[key])
    .find((name) => name !== undefined)
}

/** From the narrowest to the widest. A summary is sampled by whoever works on the main line. */
function linesFor(line: DeclaredRole): string[] {
  if (line === 'compaction') return [line, 'main', ALL_LINES]
  return line.startsWith('subagent:') ? [line, 'subagent', ALL_LINES] : [line, ALL_LINES]
}

function refused(param: string, message: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}

/** What a turn on record says of its policy; null: it had none. */
export function policyOnRecord({ annotations }: { annotations: string }): string | null {
  // Most turns have none, and are not parsed for it.
  if (!annotations.includes('"policy"')) return null
  const { policy } = JSON.parse(annotations) as { policy?: unknown }
  return typeof policy === 'string' ? policy : null
}
