/**
 * Policies: the model or adapter that samples the requests of a session, regardless of the model that agents request.
 * If a request ran on the weights of another policy, the training of several policies would be wrong without an error.
 */
import { createInvalidError } from '../../../base/errors.ts'
import { type DeclaredAgentRole, isDeclaredRole } from '../roles/agent-role.ts'

/** The names of models by agent role; `*` is the default for all roles. */
export type Policies = Readonly<Record<string, string>>

const ALL_ROLES = '*'
const MAX_ROLES = 64
const MAX_NAME_CHARS = 512

/**
 * Validates policies.
 * @param policy one name for all roles, or names by role
 * @throws ProxyError `invalid_request`
 */
export function readPolicies(policy: string | Record<string, string> | undefined): Policies {
  if (policy === undefined) return {}
  const policies = typeof policy === 'string' ? { [ALL_ROLES]: policy } : policy
  const entries = Object.entries(policies)
  if (entries.length > MAX_ROLES)
    throw createInvalidError(`'policy' names more than ${MAX_ROLES} agent roles`, 'policy')
  for (const [role, name] of entries) {
    if (role !== ALL_ROLES && !isDeclaredRole(role)) {
      const roles = 'main, compaction, side, subagent, subagent:<name> or *'
      throw createInvalidError(
        `'policy' names agent roles: ${roles}; there is no '${role.slice(0, 100)}'`,
        'policy',
      )
    }
    if (name === '' || name.length > MAX_NAME_CHARS) {
      throw createInvalidError(
        `the policy of '${role}' must be a name of 1 to ${MAX_NAME_CHARS} characters`,
        'policy',
      )
    }
  }
  return policies
}

/**
 * Returns the policy of a request.
 * @param role the role that the request declares; default: `main`
 * @returns undefined if the session has no policy for the role
 */
export function findPolicy(policies: Policies, role: DeclaredAgentRole = 'main'): string | undefined {
  return getKeys(role)
    .map((key) => policies[key])
    .find((name) => name !== undefined)
}

/**
 * Returns the keys that apply to a role, in order of precedence. Compactions use the policy of the main role unless
 * they have their own.
 */
function getKeys(role: DeclaredAgentRole): string[] {
  if (role === 'compaction') return [role, 'main', ALL_ROLES]
  return role.startsWith('subagent:') ? [role, 'subagent', ALL_ROLES] : [role, ALL_ROLES]
}

/** Returns the policy with which a recorded turn was sampled; null: none. */
export function readRecordedPolicy({ annotations }: { annotations: string }): string | null {
  // Most turns have no policy, so parsing is skipped.
  if (!annotations.includes('"policy"')) return null
  const { policy } = JSON.parse(annotations) as { policy?: unknown }
  return typeof policy === 'string' ? policy : null
}
