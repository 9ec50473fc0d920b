/**
 * `llm-proxy sessions complete`, `sessions abort` and `sessions delete`. Each returns the exit code: 1 if a session
 * does not exist.
 */
import type { Static, TSchema } from 'typebox'
import type { SessionsChangeConfig } from '../../proxy/config/options/operator.ts'
import { DeletedSession, EndedSession } from '../../proxy/http/trainer/sessions/schemas.ts'
import { formatJson, toPrintable } from '../table.ts'
import { withChangesApi } from './open-changes.ts'

export function complete(config: SessionsChangeConfig, sessionIds: string[]): Promise<number> {
  return changeSessions(config, sessionIds, { method: 'POST', action: '/complete', schema: EndedSession })
}

export function abort(config: SessionsChangeConfig, sessionIds: string[]): Promise<number> {
  return changeSessions(config, sessionIds, { method: 'POST', action: '/abort', schema: EndedSession })
}

export function remove(config: SessionsChangeConfig, sessionIds: string[]): Promise<number> {
  return changeSessions(config, sessionIds, { method: 'DELETE', action: '', schema: DeletedSession })
}

type EndResult = Static<typeof EndedSession | typeof DeletedSession>

function changeSessions(
  { json, ...target }: SessionsChangeConfig,
  sessionIds: readonly string[],
  { method, action, schema }: { method: 'POST' | 'DELETE'; action: string; schema: TSchema },
): Promise<number> {
  return withChangesApi(target, async (api) => {
    let missing = 0
    for (const id of sessionIds) {
      const path = `/sessions/${encodeURIComponent(id)}${action}`
      const result = (await api.sendJson(method, path, schema)) as EndResult
      if (result.status === 'not_found') missing += 1
      const line = json ? formatJson(result) : `${toPrintable(id)}: ${result.status.replace('_', ' ')}`
      process.stdout.write(`${line}\n`)
    }
    return missing > 0 ? 1 : 0
  })
}
