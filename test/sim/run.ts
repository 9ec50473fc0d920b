/**
 * `npm run sim`: simulates runs by seed. If a run violates a guarantee, its faults are minimized and the command to
 * repeat it is printed.
 */
import { parseArgs } from 'node:util'
import { runSeeds } from './seeds.ts'
import { realNowMs } from './world/virtual-time.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string' },
    /** The number of seeds, starting at `seed`. */
    count: { type: 'string', default: '1' },
    seeds: { type: 'string' },
    steps: { type: 'string' },
    faults: { type: 'string' },
    jobs: { type: 'string', default: '1' },
    verbose: { type: 'boolean', default: false },
    twice: { type: 'boolean', default: false },
    first: { type: 'boolean', default: false },
  },
})

// The reader of a pipe may close it early (`--verbose | head`).
process.stdout.once('error', () => process.exit(1))
const [from, to] = getRange(values.seed, values.seeds ?? '1')
const startMs = realNowMs()
const { runs, failed, attempts, responses } = await runSeeds({
  from,
  to,
  jobs: Number(values.jobs),
  verbose: values.verbose,
  first: values.first,
  twice: values.twice,
  ...(values.steps !== undefined && { steps: Number(values.steps) }),
  ...(values.faults !== undefined && { faults: values.faults.split(',').filter(Boolean).map(Number) }),
})
const seconds = (realNowMs() - startMs) / 1_000
console.log(
  `seeds ${from}..${to}: ${runs - failed.length} of ${runs} runs kept every guarantee; ${attempts} requests, ${responses} responses; ` +
    `${seconds.toFixed(1)} s`,
)
if (runs === 0) {
  console.log('there is no run with these options')
  process.exitCode = 1
}
if (failed.length > 0) {
  console.log(`failed seeds: ${failed.join(' ')}`)
  process.exitCode = 1
}

function getRange(seed: string | undefined, seeds: string): [number, number] {
  if (seed !== undefined) return [Number(seed), Number(seed) + Number(values.count) - 1]
  const [first, last = first] = seeds.split('..').map(Number)
  return [first!, last!]
}
