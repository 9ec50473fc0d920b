/**
 * `llm-proxy sessions complete`, `sessions abort` and `sessions delete`. Each returns the exit code: 1 if a session
 * does not exist.
 */
import type { Static, TSchema } from 'typebox'
import type { OperatorConfig } from '../../proxy/config/options/operator.ts'
import { DeletedSession, EndedSession } from '../../proxy/http/trainer/sessions/schemas.ts'
import { OperatorClient } from '../proxy-client.ts'
import { formatJson, printable } from '../table.ts'

export function complete(config: OperatorConfig, sessionIds: string[]): Promise<number> {
  return forEach(config, sessionIds, { method: 'POST', action: '/complete', schema: EndedSession })
}

export function abort(config: OperatorConfig, sessionIds: string[]): Promise<number> {
  return forEach(config, sessionIds, { method: 'POST', action: '/abort', schema: EndedSession })
}

export function remove(config: OperatorConfig, sessionIds: string[]): Promise<number> {
  return forEach(config, sessionIds, { method: 'DELETE', action: '', schema: DeletedSession })
}

type EndResult = Static<typeof EndedSession | typeof DeletedSession>

async function forEach(
  { json, ...address }: OperatorConfig,
  sessionIds: readonly string[],
  { method, action, schema }: { method: string; action: string; schema: TSchema },
): Promise<number> {
  const proxy = new OperatorClient(address)
  let missing = 0
  for (const id of sessionIds) {
    const answer = (await proxy.call(
      method,
      `/sessions/${encodeURIComponent(id)}${action}`,
      schema,
    )) as EndResult
    if (answer.status === 'not_found') missing += 1
    const line = json ? formatJson(answer) : `${printable(id)}: ${answer.status.replace('_', ' ')}`
    process.stdout.write(`${line}\n`)
  }
  return missing > 0 ? 1 : 0
}
