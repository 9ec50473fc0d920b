/**
 * Harbor's task directories. A task is a directory with `task.toml` (settings and free metadata) and `instruction.md`
 * (the agent's instruction). Only the server that runs the agent uses the environment, the tests and the solution.
 * Format: https://www.harborframework.com/docs/tasks
 */
import { readdir, readFile } from 'node:fs/promises'
import { basename, join, relative, resolve, sep } from 'node:path'
import { parse, TomlError } from 'smol-toml'
import { ProxyError } from '../../base/errors.ts'
import type { DatasetRow } from './parquet-columns.ts'
import type { ColumnValue } from './shape.ts'

export interface HarborTask {
  /** The path relative to the searched directory, with `/`; the directory's own name if it is a task itself. */
  taskId: string
  /** The absolute path. */
  path: string
  instruction: string
  /** The table `metadata` of task.toml. Other tables may contain secrets: environments of agents and verifiers. */
  metadata: { [field: string]: ColumnValue }
}

export interface DirectorySkip {
  /** The path relative to the searched directory. */
  directory: string
  reason: string
}

export interface HarborTasks {
  /** The tasks, sorted by id. */
  tasks: HarborTask[]
  skipped: DirectorySkip[]
}

const CONFIG_FILE = 'task.toml'
const INSTRUCTION_FILE = 'instruction.md'
/** The maximum depth of the search; data sets group tasks by organisation or topic. */
const MAX_DEPTH = 6
/** The number of directories read concurrently. */
const BATCH = 64

/**
 * Finds and reads the tasks of a directory. Hidden directories, links and the contents of tasks are not searched.
 * @throws ProxyError `start_failed` when the directory cannot be read
 */
export async function readHarborTasks(directory: string): Promise<HarborTasks> {
  const root = resolve(directory)
  const found = await search(root, 0)
  const read: (HarborTask | DirectorySkip)[] = []
  for (let start = 0; start < found.length; start += BATCH) {
    read.push(...(await Promise.all(found.slice(start, start + BATCH).map((each) => readTask(root, each)))))
  }
  return {
    tasks: read.filter((each) => 'taskId' in each),
    skipped: read.filter((each) => 'reason' in each),
  }
}

/** A directory that may be a task. */
interface TaskCandidate {
  path: string
  /** The names of the directory's entries. */
  names: ReadonlySet<string>
}

/**
 * Returns the candidates for tasks, sorted by name: directories with at least one of a task's files, and the topmost
 * directories that contain no such directory.
 */
async function search(path: string, depth: number): Promise<TaskCandidate[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch((cause: unknown) => {
    throw new ProxyError('start_failed', `cannot read the directory ${path}`, { cause })
  })
  const names = new Set(entries.map(({ name }) => name))
  if (names.has(CONFIG_FILE) || names.has(INSTRUCTION_FILE)) return [{ path, names }]
  const children = entries.filter((entry) => entry.isDirectory() && !entry.name.startsWith('.'))
  const below: TaskCandidate[] = []
  if (depth < MAX_DEPTH) {
    for (const { name } of children.sort(compareNames))
      below.push(...(await search(join(path, name), depth + 1)))
  }
  const containsTask = below.some((each) => each.names.has(CONFIG_FILE) || each.names.has(INSTRUCTION_FILE))
  // Report a directory without tasks once, not once for each of its subdirectories.
  return containsTask || depth === 0 ? below : [{ path, names }]
}

function compareNames(a: { name: string }, b: { name: string }): number {
  return a.name < b.name ? -1 : 1
}

async function readTask(root: string, { path, names }: TaskCandidate): Promise<HarborTask | DirectorySkip> {
  const below = relative(root, path).replaceAll(sep, '/')
  const directory = below === '' ? basename(root) : below
  try {
    for (const name of [CONFIG_FILE, INSTRUCTION_FILE])
      if (!names.has(name)) throw new IncompleteTaskError(`no ${name}`)
    const instruction = await read(path, INSTRUCTION_FILE)
    if (instruction.trim() === '') throw new IncompleteTaskError(`${INSTRUCTION_FILE} is empty`)
    return { taskId: directory, path, instruction, metadata: parseMetadata(await read(path, CONFIG_FILE)) }
  } catch (error) {
    if (error instanceof IncompleteTaskError) return { directory, reason: error.message }
    throw error
  }
}

/** The error for a directory that is not a task; the message is the reason. */
class IncompleteTaskError extends Error {}

async function read(path: string, name: string): Promise<string> {
  const bytes = await readFile(join(path, name)).catch((error: NodeJS.ErrnoException) => {
    throw new IncompleteTaskError(`${name} cannot be read (${error.code})`)
  })
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    throw new IncompleteTaskError(`${name} is not UTF-8`)
  }
}

function parseMetadata(toml: string): HarborTask['metadata'] {
  const { metadata = {} } = parseToml(toml)
  if (typeof metadata !== 'object' || Array.isArray(metadata) || metadata instanceof Date) {
    throw new IncompleteTaskError(`metadata in ${CONFIG_FILE} is not a table`)
  }
  return metadata as HarborTask['metadata']
}

function parseToml(text: string): Record<string, unknown> {
  try {
    return parse(text, { integersAsBigInt: 'asNeeded' })
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    const [what = ''] = error.message.split('\n')
    throw new IncompleteTaskError(
      `${CONFIG_FILE} line ${error.line}: ${what.replace(/^Invalid TOML document: /, '')}`,
    )
  }
}

interface DatasetFields {
  /** `train` or `val`. */
  split: string
  /** The name of the data set, by which verl chooses its reward function and groups its metrics. */
  dataSource: string
}

/**
 * Converts tasks to rows of verl's data sets (`RLHFDataset`, which passes a row's columns to the agent loop), one per
 * task. They have no reward, because the task's verifier computes it.
 */
export function toVerlRows(tasks: readonly HarborTask[], { split, dataSource }: DatasetFields): DatasetRow[] {
  return tasks.map(({ taskId, path, instruction, metadata }, index) => ({
    data_source: dataSource,
    prompt: [{ role: 'user', content: instruction }],
    ability: typeof metadata.category === 'string' ? metadata.category : 'agent',
    reward_model: { style: 'rule', ground_truth: '' },
    extra_info: { split, index, task_id: taskId, local_path: path, task_metadata: metadata },
    instance_id: taskId,
    local_task_path: path,
  }))
}
