/** A `fetch` for an SDK's client that loses first tries in the ways of a bad network; what follows them gets through. */
export type Loss =
  /** The proxy gets nothing. */
  | 'refused'
  /** The connection breaks once the answer has begun. */
  | 'broken'
  /** The client hears nothing more, and the proxy is not told. */
  | 'silent'
  /** The proxy has sent all of its answer, and the client gets none of it. */
  | 'unread'

export interface LossyFetch {
  fetch: typeof fetch
  /** Bodies of answers that were read to their end, lost ones too, in order. */
  bodies: string[]
  /** Answers that nobody reads. */
  silent: Promise<unknown>[]
}

/**
 * @param losses of the first tries, in order
 * @param underWay resolves when the proxy has begun a call; a try that becomes silent does so then
 */
export function lossyFetch(losses: Loss[], underWay: () => Promise<unknown> = async () => {}): LossyFetch {
  const left = [...losses]
  const bodies: string[] = []
  const silent: Promise<unknown>[] = []
  const lossy = async (input: Parameters<typeof fetch>[0], init?: RequestInit): Promise<Response> => {
    const loss = left.shift()
    if (loss === 'refused') throw new TypeError('fetch failed')
    // A try that is given up hears nothing more of its caller.
    const { signal: _signal, ...alone } = init ?? {}
    const answer = fetch(input, loss === undefined ? init : alone)
    if (loss === 'silent') {
      // Held, so that the connection stays open as long as anybody may retry.
      silent.push(answer.catch(() => undefined))
      await underWay()
      throw new TypeError('timed out')
    }
    const response = await answer
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
