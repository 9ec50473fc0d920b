/**
 * Waits until somebody calls what it puts into a line.
 * @throws `signal.reason`, and is out of the line in the same breath: its turn would be lost
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
