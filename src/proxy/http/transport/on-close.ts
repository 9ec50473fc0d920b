import type { ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'

/** Calls `run` when a response is complete or its connection has closed; immediately if that has happened. */
export function runOnClose(response: ServerResponse, run: () => void): void {
  if (response.closed) run()
  // `close` is emitted only once. `once` would wrap each listener needlessly.
  else response.on('close', run)
}

/**
 * Returns a signal that aborts when the client's connection closes before the response was sent. Its reason is a
 * ProxyError `agent_gone`, or the error with which the proxy closed the connection.
 */
export function createDisconnectSignal(reply: FastifyReply): AbortSignal {
  return createDisconnectController(reply).signal
}

/** Returns the controller of a {@link createDisconnectSignal}, for callers that may also cancel the request. */
export function createDisconnectController({ raw }: FastifyReply): AbortController {
  const controller = new AbortController()
  runOnClose(raw, () => {
    if (raw.writableFinished) return
    controller.abort(
      raw.errored instanceof ProxyError
        ? raw.errored
        : new ProxyError('agent_gone', 'The client closed its connection before the response was complete'),
    )
  })
  return controller
}
