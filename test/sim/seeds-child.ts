/** A process that runs a part of the seeds. */
import { runSeeds, type SeedsOptions } from './seeds.ts'

process.once('message', async (part: SeedsOptions) => {
  const result = await runSeeds(part)
  process.send!(result, () => process.disconnect())
})
