/**
 * Adds a callback to a queue and waits until it is invoked.
 * @throws `signal.reason` after an abort. The callback is then removed synchronously, so that the slot is not passed to
 *   a caller that no longer waits.
 */
export async function waitInQueue(queue: Set<() => void>, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const onAbort = () => {
    queue.delete(resolve)
    reject(signal.reason)
  }
  signal.addEventListener('abort', onAbort, { once: true })
  queue.add(resolve)
  try {
    await promise
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
