import type { ServerResponse } from 'node:http'

/** Runs it once the connection of a response is gone, or the response is over: at once, if that is so already. */
export function onClose(response: ServerResponse, run: () => void): void {
  if (response.closed) run()
  else response.once('close', run)
}
