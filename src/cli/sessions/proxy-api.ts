import type { RequestOptions } from 'node:https'
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { trustedAuthorities } from '../../config/trusted-authorities.ts'
import { ProxyError } from '../../errors.ts'
import { ErrorReply } from '../../http/described.ts'
import { SessionList } from '../../http/read/schemas.ts'
import { SessionWithTurns, Trajectories } from '../../http/sessions/schemas.ts'
import { ask } from '../ask.ts'
import type { SessionsApi } from './api.ts'

export interface RunningProxy {
  /** Its base URL. */
  url: string
  /** Where it asks for one. */
  adminKey: string | undefined
  /** File of authorities that its certificate may come from. */
  tlsCa: string | undefined
}

/** The sessions API of a running proxy. @throws ProxyError `config_invalid` for a file that holds no authorities */
export function proxyApi({ url, adminKey, tlsCa }: RunningProxy): SessionsApi {
  const options = {
    ...trustedAuthorities(tlsCa),
    headers: adminKey === undefined ? {} : { authorization: `Bearer ${adminKey}` },
  }
  const base = `${url.replace(/\/+$/, '')}/sessions`
  const at = (sessionId: string) => `${base}/${encodeURIComponent(sessionId)}`
  return {
    list: ({ status, limit, cursor }) => {
      const query = new URLSearchParams({ limit: String(limit) })
      if (status !== undefined) query.set('status', status)
      if (cursor !== undefined) query.set('cursor', cursor)
      return get(`${base}?${query}`, options, SessionList)
    },
    withTurns: (sessionId) => get(at(sessionId), options, SessionWithTurns),
    withTrajectories: (sessionId, { select, side_calls, finished_only }) => {
      const query = new URLSearchParams({
        select,
        side_calls: String(side_calls),
        finished_only: String(finished_only),
      })
      return get(`${at(sessionId)}/trajectories?${query}`, options, Trajectories)
    },
    close: async () => {},
  }
}

async function get<T extends TSchema>(url: string, options: RequestOptions, schema: T): Promise<Static<T>> {
  const { status, text } = await ask(url, options).catch((cause: unknown) => {
    throw new ProxyError('start_failed', `no proxy answers at ${url}`, { cause })
  })
  const body = parseJson(text)
  const isWell = status >= 200 && status < 300
  if (isWell && Value.Check(schema, body)) return body
  if (!isWell && Value.Check(Type.Pick(ErrorReply, ['detail']), body)) {
    const hint = status === 401 || status === 403 ? ': give --admin-key' : ''
    const code = status === 404 ? 'session_not_found' : 'start_failed'
    throw new ProxyError(code, body.detail + hint)
  }
  throw new ProxyError('start_failed', `${url} does not answer as this version of llm-proxy does`)
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
