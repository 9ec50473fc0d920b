/**
 * Does a task for each item, so many of them at a time, in the order of the items. When one throws, no further one is
 * begun; those that run are waited for, and the first error is thrown.
 */
export async function mapConcurrently<T>(
  items: Iterable<T>,
  limit: number,
  task: (item: T, index: number) => Promise<void>,
): Promise<void> {
  const waiting = Array.from(items).entries()
  let failed: { error: unknown } | undefined
  const work = async (): Promise<void> => {
    // One iterator for all: each item is taken once.
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
