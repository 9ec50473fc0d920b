/** A `fetch` for an SDK's client that fails the first attempts as a bad network does; later attempts succeed. */
export type Loss =
  /** The proxy receives nothing. */
  | 'refused'
  /** The connection breaks once the response has started. */
  | 'broken'
  /** The client receives nothing more, and the proxy is not notified. */
  | 'silent'
  /** The proxy has sent its complete response, and the client receives none of it. */
  | 'unread'

export interface LossyFetch {
  fetch: typeof fetch
  /** Bodies of responses that were read completely, including dropped ones, in order. */
  bodies: string[]
  /** Responses that are not read. */
  silent: Promise<unknown>[]
}

/**
 * Creates a lossy `fetch`.
 * @param losses of the first attempts, in order
 * @param untilStarted resolves when the proxy has started the request; a silent attempt then becomes silent
 */
export function lossyFetch(
  losses: Loss[],
  untilStarted: () => Promise<unknown> = async () => {},
): LossyFetch {
  const remaining = [...losses]
  const bodies: string[] = []
  const silent: Promise<unknown>[] = []
  const lossy = async (input: Parameters<typeof fetch>[0], init?: RequestInit): Promise<Response> => {
    const loss = remaining.shift()
    if (loss === 'refused') throw new TypeError('fetch failed')
    // An attempt that is abandoned receives no abort signal.
    const { signal: _signal, ...alone } = init ?? {}
    const reply = fetch(input, loss === undefined ? init : alone)
    if (loss === 'silent') {
      // Stored, so that the connection stays open while a client may retry.
      silent.push(reply.catch(() => undefined))
      await untilStarted()
      throw new TypeError('timed out')
    }
    const response = await reply
    if (loss === 'broken') {
      await response.body?.cancel()
      throw new TypeError('terminated')
    }
    const text = await response.text()
    bodies.push(text)
    if (loss === 'unread') throw new TypeError('terminated')
    const { status, headers } = response
    return new Response(text, { status, headers })
  }
  return { fetch: lossy as typeof fetch, bodies, silent }
}
