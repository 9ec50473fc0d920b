/**
 * Runs a task for each item in the order of the items, at most `limit` at a time. After one throws, no further task is
 * started; running ones are awaited, and the first error is thrown.
 */
export async function mapConcurrently<T>(
  items: Iterable<T>,
  limit: number,
  task: (item: T, index: number) => Promise<void>,
): Promise<void> {
  const waiting = Array.from(items).entries()
  let failed: { error: unknown } | undefined
  const work = async (): Promise<void> => {
    // All workers share one iterator, so that each item is processed once.
    for (const [index, item] of waiting) {
      if (failed) return
      try {
        await task(item, index)
      } catch (error) {
        failed ??= { error }
      }
    }
  }
  await Promise.all(Array.from({ length: limit }, work))
  if (failed) throw failed.error
}
