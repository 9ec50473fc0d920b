import { ProxyError } from '../../base/errors.ts'
import type { SessionsRewardConfig } from '../../proxy/config/options/operator.ts'
import { Session } from '../../proxy/http/trainer/sessions/schemas.ts'
import { formatJson, formatNumber, toPrintable } from '../table.ts'
import { withChangesApi } from './open-changes.ts'

/** Runs `llm-proxy sessions reward <session-id> <reward>`. @returns the exit code */
export async function run(
  { components, turns, json, ...target }: SessionsRewardConfig,
  [sessionId, text]: string[],
): Promise<number> {
  const reward = text!.trim() === '' ? Number.NaN : Number(text)
  if (!Number.isFinite(reward))
    throw new ProxyError('config_invalid', `invalid reward "${text}": expected a number`)
  const path = `/sessions/${encodeURIComponent(sessionId!)}/reward`
  const session = await withChangesApi(target, (api) =>
    api.sendJson('POST', path, Session, { reward, components, turns }),
  )
  const line = json ? formatJson(session) : `${toPrintable(sessionId!)}: reward ${formatNumber(reward)}`
  process.stdout.write(`${line}\n`)
  return 0
}
