/** Runs seeds in sequence or in several processes, and reports those that fail. */
import { fork } from 'node:child_process'
import { formatFault } from './faults.ts'
import { type RunOptions, type RunResult, simulate } from './simulation.ts'

export interface SeedsOptions extends Pick<RunOptions, 'steps' | 'faults'> {
  from: number
  to: number
  /** The number of processes. */
  jobs: number
  verbose: boolean
  /** Stops at the first seed that violates a guarantee, without minimizing its faults. */
  first?: boolean
  /** Runs each seed twice, and counts it as failed if the logs differ. */
  twice?: boolean
}

export interface SeedsResult {
  runs: number
  failed: number[]
  attempts: number
  responses: number
}

export async function runSeeds(options: SeedsOptions): Promise<SeedsResult> {
  if (options.jobs > 1) return runInProcesses(options)
  const result: SeedsResult = { runs: 0, failed: [], attempts: 0, responses: 0 }
  for (let seed = options.from; seed <= options.to; seed += 1) {
    const run = await runSeed(seed, options)
    result.runs += 1
    result.attempts += run.attempts
    result.responses += run.responses
    const isReproducible = !options.twice || (await hasEqualLog(run, options))
    if (run.violations.length > 0 || !isReproducible) result.failed.push(seed)
    if (options.first && result.failed.length > 0) break
  }
  return result
}

/** Runs the seed again. Returns whether the logs are equal. */
async function hasEqualLog({ seed, digest }: RunResult, { steps }: SeedsOptions): Promise<boolean> {
  const second = await simulate({ seed, ...(steps !== undefined && { steps }) })
  if (second.digest === digest) return true
  console.log(`seed ${seed}: two runs have different logs, ${digest} and ${second.digest}`)
  return false
}

async function runSeed(seed: number, { steps, faults, verbose, first }: SeedsOptions): Promise<RunResult> {
  const options: RunOptions = {
    seed,
    ...(steps !== undefined && { steps }),
    ...(faults && { faults }),
    ...(verbose && { echo: (line: string) => console.log(line) }),
  }
  const result = await simulate(options)
  if (verbose) console.log(`seed ${seed}: log ${result.digest}, ${result.tasks} tasks`)
  if (result.violations.length === 0) return result
  console.log(`seed ${seed}: ${result.violations.join('\n  ')}`)
  if (first) return result
  const needed = faults ?? (await shrink(options, result))
  console.log(`  repeat with: npm run sim -- --seed ${seed} --faults ${needed.join(',') || 'none'} --verbose`)
  if (faults === undefined)
    for (const index of needed) console.log(`  ${index}: ${formatFault(result.faults[index]!)}`)
  return result
}

/**
 * Omits faults one by one, as long as the run still violates a guarantee.
 * @returns the indices of the remaining faults
 */
async function shrink(options: RunOptions, { faults }: RunResult): Promise<number[]> {
  let needed = faults.map((_fault, index) => index)
  const { echo: _echo, ...quiet } = options
  for (const index of needed.toReversed()) {
    const fewer = needed.filter((other) => other !== index)
    const { violations } = await simulate({ ...quiet, faults: fewer })
    if (violations.length > 0) needed = fewer
  }
  return needed
}

/** Splits the seeds into one contiguous range per process. */
async function runInProcesses(options: SeedsOptions): Promise<SeedsResult> {
  const { from, to, jobs } = options
  const share = Math.ceil((to - from + 1) / jobs)
  const parts = Array.from({ length: jobs }, (_, index) => {
    const first = from + index * share
    return { ...options, jobs: 1, from: first, to: Math.min(to, first + share - 1) }
  }).filter((part) => part.from <= part.to)
  const results = await Promise.all(parts.map(runInProcess))
  return {
    runs: results.reduce((sum, { runs }) => sum + runs, 0),
    failed: results.flatMap(({ failed }) => failed),
    attempts: results.reduce((sum, { attempts }) => sum + attempts, 0),
    responses: results.reduce((sum, { responses }) => sum + responses, 0),
  }
}

function runInProcess(part: SeedsOptions): Promise<SeedsResult> {
  return new Promise((resolve, reject) => {
    const child = fork(new URL('./seeds-child.ts', import.meta.url))
    child.once('message', (result) => resolve(result as SeedsResult))
    child.once('exit', (status) => reject(new Error(`a process of the simulation exited with ${status}`)))
    child.send(part)
  })
}
