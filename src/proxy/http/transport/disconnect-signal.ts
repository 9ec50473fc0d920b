import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { onClose } from './on-close.ts'

/** A signal that aborts when the client's connection closes before its answer was sent: `agent_gone`, or why we closed it. */
export function createDisconnectSignal(reply: FastifyReply): AbortSignal {
  return abortOnDisconnect(reply).signal
}

/** The same, for whoever may end the call as well. */
export function abortOnDisconnect({ raw }: FastifyReply): AbortController {
  const controller = new AbortController()
  onClose(raw, () => {
    if (raw.writableFinished) return
    controller.abort(
      raw.errored instanceof ProxyError
        ? raw.errored
        : new ProxyError('agent_gone', 'The client closed its connection before its answer was whole'),
    )
  })
  return controller
}
