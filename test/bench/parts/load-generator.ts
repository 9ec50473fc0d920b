import { once } from 'node:events'
import { join } from 'node:path'
import type { Child, Children } from './children.ts'
import type { LoadJob, LoadResult } from './load-job.ts'

/** The time for the last requests to end. */
const END_TIMEOUT_MS = 30_000

/** The load generator's process, as its parent sees it. */
export class LoadGenerator {
  readonly #child: Child

  private constructor(child: Child) {
    this.#child = child
  }

  static async start(children: Children): Promise<LoadGenerator> {
    const script = join(import.meta.dirname, '../processes/load-generator.ts')
    return new LoadGenerator(
      await children.start({ name: 'load generator', args: [script], silent: true, ipc: true }),
    )
  }

  /**
   * Runs a job.
   * @throws Error if a request failed: the figures would be meaningless
   */
  async run(job: LoadJob): Promise<LoadResult> {
    const { process } = this.#child
    const signal = AbortSignal.timeout(job.warmUpMs + job.durationMs + END_TIMEOUT_MS)
    process.send(job)
    const [result] = (await once(process, 'message', { signal })) as [LoadResult]
    if (result.failures === 0 && result.requests > 0) return result
    throw new Error(
      `${result.failures} of ${result.requests} requests to ${job.url} failed: ${result.firstFailure}`,
    )
  }
}
