/** What is not waited for any more goes on. @throws what `work` does; after an abort, `signal.reason` */
export async function raceAbort<Result>(work: Promise<Result>, signal: AbortSignal): Promise<Result> {
  signal.throwIfAborted()
  const calledOff = Promise.withResolvers<never>()
  const onAbort = () => calledOff.reject(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    return await Promise.race([work, calledOff.promise])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
