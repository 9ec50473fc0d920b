import { SessionList } from '../../proxy/http/trainer/read/schemas.ts'
import { SessionWithTurns, Trajectories } from '../../proxy/http/trainer/sessions/schemas.ts'
import { OperatorClient, type ProxyAddress } from '../proxy-client.ts'
import type { SessionsApi } from './api.ts'

/** The sessions API of a running proxy. @throws ProxyError `config_invalid` for a file that holds no authorities */
export function proxyApi(address: ProxyAddress): SessionsApi {
  const proxy = new OperatorClient(address)
  const at = (sessionId: string) => `/sessions/${encodeURIComponent(sessionId)}`
  return {
    list: ({ metadata = {}, ...asked }) => {
      const query = new URLSearchParams()
      for (const [name, value] of Object.entries(asked)) {
        if (value !== undefined) query.set(name, String(value))
      }
      for (const [name, value] of Object.entries(metadata)) query.set(`metadata.${name}`, value)
      return proxy.get(`/sessions?${query}`, SessionList)
    },
    withTurns: (sessionId) => proxy.get(at(sessionId), SessionWithTurns),
    withTrajectories: (sessionId, { select, side_calls, finished_only, per_turn = false, details }) => {
      const query = new URLSearchParams({
        select,
        side_calls: String(side_calls),
        finished_only: String(finished_only),
        per_turn: String(per_turn),
        ...(details !== undefined && { details }),
      })
      return proxy.get(`${at(sessionId)}/trajectories?${query}`, Trajectories)
    },
    close: async () => {},
  }
}
