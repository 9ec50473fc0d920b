import { realpathSync, statSync } from 'node:fs'
import { basename, dirname, isAbsolute, join, relative, resolve } from 'node:path'
import type { Sample } from './runners/runner.ts'
import { getInstanceId } from './trial-id.ts'

export interface TaskPathOptions {
  /** Directories with a task directory per instance id. */
  datasetDirs: readonly string[]
  /** With `{instance_id}` in it. */
  taskPathTemplate: string | undefined
}

const PLACEHOLDER = '{instance_id}'

/**
 * Where the task of a row is: its `local_task_path` if that is a directory, else the first dataset directory that has
 * one of its instance id, else what the template says, whether it is there or not. Rows are data, and a task's
 * directory is sent to whoever runs it: where directories are configured, links resolved, no row names what lies beside
 * them.
 */
export function findTaskPath(
  sample: Sample,
  { datasetDirs, taskPathTemplate }: TaskPathOptions,
): string | undefined {
  const { local_task_path: local } = sample
  const roots = getAllowedRoots({ datasetDirs, taskPathTemplate })
  if (typeof local === 'string' && isDirectory(local) && isAllowed(roots, local)) return local
  const instanceId = getInstanceId(sample)
  if (instanceId === undefined) return undefined
  if (instanceId.includes('\0')) return undefined
  const candidates = datasetDirs.map((root) => ({ root, path: join(root, instanceId) }))
  const found = candidates.find(({ root, path }) => isInside(root, path) && isDirectory(path))
  if (found || taskPathTemplate === undefined) return found?.path
  const path = taskPathTemplate.replaceAll(PLACEHOLDER, () => instanceId)
  return isInside(templateRoot(taskPathTemplate), path) ? path : undefined
}

/** None: nothing is configured, and the rows are trusted with the whole disk. */
function getAllowedRoots({ datasetDirs, taskPathTemplate }: TaskPathOptions): string[] {
  return [...datasetDirs, ...(taskPathTemplate === undefined ? [] : [templateRoot(taskPathTemplate)])]
}

/** The directory that all paths of the template are in. */
function templateRoot(template: string): string {
  const [fixed = ''] = template.split(PLACEHOLDER)
  return fixed.endsWith('/') ? fixed : dirname(fixed)
}

function isAllowed(roots: readonly string[], path: string): boolean {
  return roots.length === 0 || roots.some((root) => isInside(root, path))
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}

/** A row must not name what lies beside its dataset. */
function isInside(root: string, path: string): boolean {
  const way = relative(realPath(root), realPath(path))
  return way !== '' && way !== '..' && !way.startsWith('../') && !isAbsolute(way)
}

/** What is not there is what it says. */
function realPath(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    const parent = dirname(resolve(path))
    return parent === resolve(path) ? parent : join(realPath(parent), basename(resolve(path)))
  }
}
