/**
 * Starts a task for each item, in order, with at most `limit` tasks running. After a task throws, no further task is
 * started; running ones are awaited, and the first error is thrown.
 */
export async function mapConcurrently<T>(
  items: Iterable<T>,
  limit: number,
  task: (item: T, index: number) => Promise<void>,
): Promise<void> {
  const remaining = Array.from(items).entries()
  let failed: { error: unknown } | undefined
  const runWorker = async (): Promise<void> => {
    // All workers share one iterator, so that each item is processed once.
    for (const [index, item] of remaining) {
      if (failed) return
      try {
        await task(item, index)
      } catch (error) {
        failed ??= { error }
      }
    }
  }
  await Promise.all(Array.from({ length: limit }, runWorker))
  if (failed) throw failed.error
}
