import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { ProxyError } from '../../base/errors.ts'
import type { DatasetHarborConfig } from '../../proxy/config/options/dataset.ts'
import {
  type DirectorySkip,
  type HarborTasks,
  readHarborTasks,
  toVerlRows,
} from '../../rollout/datasets/harbor-tasks.ts'
import { writeParquet } from '../../rollout/datasets/parquet-file.ts'

interface DatasetSplit extends HarborTasks {
  name: 'train' | 'val'
  directory: string
}

/** Runs `llm-proxy dataset harbor`: converts task directories to one Parquet file per split. @returns the exit code */
export async function run(config: DatasetHarborConfig): Promise<number> {
  const { out, limit, dataSource } = config
  if (out === undefined)
    throw new ProxyError('config_invalid', '--out is missing: name a directory to write to')
  const splits = await readSplits(config)
  const rows = splits.map(({ name, tasks }) => toVerlRows(tasks.slice(0, limit), { split: name, dataSource }))
  await makeDirectory(out)
  for (const [index, split] of splits.entries()) {
    const path = join(out, `${split.name}.parquet`)
    const written = await writeParquet(path, rows[index]!, rows.flat())
    process.stdout.write(`${report(split, rows[index]!.length, path, written)}\n`)
  }
  return 0
}

/** Reads all splits before anything is written, so that an error in the second split leaves no partial data set. */
async function readSplits({ train, val }: DatasetHarborConfig): Promise<DatasetSplit[]> {
  const directories = { train, val }
  const splits: DatasetSplit[] = []
  for (const name of ['train', 'val'] as const) {
    const directory = directories[name]
    if (directory === undefined) continue
    const split = { name, directory, ...(await readHarborTasks(directory)) }
    if (split.tasks.length === 0) throw createNoTasksError(split)
    splits.push(split)
  }
  if (splits.length > 0) return splits
  throw new ProxyError(
    'config_invalid',
    'nothing to read: name a directory of tasks with --train, --val or both',
  )
}

function createNoTasksError({ directory, skipped }: DatasetSplit): ProxyError {
  const [first] = skipped
  const reason = first === undefined ? 'it contains no directories' : `${first.directory}: ${first.reason}`
  return new ProxyError('start_failed', `there is no Harbor task in ${directory} (${reason})`)
}

async function makeDirectory(path: string): Promise<void> {
  await mkdir(path, { recursive: true }).catch((cause: unknown) => {
    throw new ProxyError('start_failed', `cannot create the directory ${path}`, { cause })
  })
}

function report({ tasks, skipped }: DatasetSplit, rowCount: number, path: string, written: boolean): string {
  const limited = rowCount < tasks.length ? ` of ${tasks.length}` : ''
  const count = `${rowCount}${limited} ${tasks.length === 1 ? 'task' : 'tasks'}`
  const lines = [`${path}: ${count}, ${written ? 'written' : 'unchanged'}`]
  for (const [reason, directories] of Map.groupBy(skipped, ({ reason }) => reason)) {
    lines.push(`  skipped ${directories.length}: ${reason} (${formatList(directories)})`)
  }
  return lines.join('\n')
}

const MAX_LISTED = 5

function formatList(directories: readonly DirectorySkip[]): string {
  const more = directories.length - MAX_LISTED
  const names = directories.slice(0, MAX_LISTED).map(({ directory }) => directory)
  return names.join(', ') + (more > 0 ? `, and ${more} more` : '')
}
