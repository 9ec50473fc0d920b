import type { ServerResponse } from 'node:http'

/** Runs `run` when a response is complete or its connection has closed: at once if that has already happened. */
export function onClose(response: ServerResponse, run: () => void): void {
  if (response.closed) run()
  // `close` is emitted once: `once` would wrap and remove each of a request's listeners.
  else response.on('close', run)
}
