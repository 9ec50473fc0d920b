/**
 * Adds a callback to a queue and waits until it is invoked.
 * @throws `signal.reason`; the callback is removed synchronously, because its turn would otherwise be lost
 */
export async function waitInQueue(line: Set<() => void>, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const giveUp = () => {
    line.delete(resolve)
    reject(signal.reason)
  }
  signal.addEventListener('abort', giveUp, { once: true })
  line.add(resolve)
  try {
    await promise
  } finally {
    signal.removeEventListener('abort', giveUp)
  }
}
