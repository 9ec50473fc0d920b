import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { whenClosed } from './when-closed.ts'

/** A signal that aborts when the client's connection closes before its answer was sent: `agent_gone`, or why we closed it. */
export function clientGone(reply: FastifyReply): AbortSignal {
  return abortedByClient(reply).signal
}

/** The same, for whoever may end the call as well. */
export function abortedByClient({ raw }: FastifyReply): AbortController {
  const controller = new AbortController()
  whenClosed(raw, () => {
    if (raw.writableFinished) return
    controller.abort(
      raw.errored instanceof ProxyError
        ? raw.errored
        : new ProxyError('agent_gone', 'The client closed its connection before its answer was whole'),
    )
  })
  return controller
}
