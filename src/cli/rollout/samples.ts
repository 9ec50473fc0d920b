import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { ProxyError } from '../../base/errors.ts'
import { isRecord } from '../../base/json.ts'
import { splitLines } from '../../base/split-lines.ts'
import { toCanonicalJson } from '../../proxy/session/matching/canonical-json.ts'
import { readParquet } from '../../rollout/datasets/parquet-file.ts'
import { isParquet } from '../../rollout/datasets/row-columns.ts'
import type { Sample } from '../../rollout/runners/runner.ts'

/** One rollout to run: the `sampleIndex`-th sample of the task at `taskIndex` of the file. */
export interface SamplePlan {
  taskIndex: number
  sampleIndex: number
  task: Sample
  /**
   * The digest of the task, independent of the order of its fields: many data sets have no other identifier of a task.
   */
  digest: string
}

/** The length of a digest in hexadecimal: 64 bits distinguish the tasks of a file from those of another. */
const DIGEST_LENGTH = 16

/** Returns the samples, ordered by task. */
export function planSamples(tasks: readonly Sample[], samplesPerTask: number): SamplePlan[] {
  return tasks.flatMap((task, taskIndex) => {
    const digest = createHash('sha256').update(toCanonicalJson(task)).digest('hex').slice(0, DIGEST_LENGTH)
    return Array.from({ length: samplesPerTask }, (_, sampleIndex) => ({
      taskIndex,
      sampleIndex,
      task,
      digest,
    }))
  })
}

/**
 * Reads the tasks of a Parquet data set (`.parquet`), or of a file with a JSON object on each line; ignores empty
 * lines.
 * @throws ProxyError `config_invalid` that names the line, `start_failed` for a data set that cannot be read
 */
export async function readSamples(path: string): Promise<Sample[]> {
  const tasks = await Array.fromAsync<Sample>(isParquet(path) ? readParquet(path) : readLines(path))
  if (tasks.length === 0) throw new ProxyError('config_invalid', `--tasks: there is no task in ${path}`)
  return tasks
}

async function* readLines(path: string): AsyncGenerator<Sample> {
  let number = 0
  try {
    for await (const line of splitLines(createReadStream(path, 'utf8'))) {
      number += 1
      if (line.trim() !== '') yield parseTask(line, `${path}:${number}`)
    }
  } catch (error) {
    if (error instanceof ProxyError) throw error
    throw new ProxyError('config_invalid', `--tasks: cannot read ${path}`, { cause: error })
  }
}

function parseTask(line: string, where: string): Sample {
  let task: unknown
  try {
    task = JSON.parse(line)
  } catch (error) {
    throw new ProxyError('config_invalid', `${where} is not JSON`, { cause: error })
  }
  if (isRecord(task)) return task
  throw new ProxyError('config_invalid', `${where} is not a JSON object`)
}
