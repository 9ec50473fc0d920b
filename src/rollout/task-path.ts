import { realpathSync, statSync } from 'node:fs'
import { basename, dirname, isAbsolute, join, relative, resolve } from 'node:path'
import type { Sample } from './runners/runner.ts'
import { getInstanceId } from './trial-id.ts'

export interface TaskPathOptions {
  /** Directories that contain a task directory per instance id. */
  datasetDirs: readonly string[]
  /** A path that contains `{instance_id}`. */
  taskPathTemplate: string | undefined
}

const PLACEHOLDER = '{instance_id}'

/**
 * Returns the path of a row's task: its `local_task_path` if that is a directory, otherwise the directory named by its
 * instance id in the first dataset directory that has one, otherwise the path of the template, which need not exist. If
 * dataset directories or a template are configured, paths outside them are ignored, with links resolved: rows are
 * untrusted, and the content of a task's directory is sent to the runner.
 * @returns undefined if the row has no task
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
  return isInside(getTemplateRoot(taskPathTemplate), path) ? path : undefined
}

/** Returns the directories that may contain tasks. If there are none, a row may name any path. */
function getAllowedRoots({ datasetDirs, taskPathTemplate }: TaskPathOptions): string[] {
  return [...datasetDirs, ...(taskPathTemplate === undefined ? [] : [getTemplateRoot(taskPathTemplate)])]
}

/** Returns the directory that contains all paths of the template. */
function getTemplateRoot(template: string): string {
  const [fixed = ''] = template.split(PLACEHOLDER)
  return fixed.endsWith('/') ? fixed : dirname(fixed)
}

function isAllowed(roots: readonly string[], path: string): boolean {
  return roots.length === 0 || roots.some((root) => isInside(root, path))
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}

/** Returns whether a path is inside a directory, with links resolved. */
function isInside(root: string, path: string): boolean {
  const way = relative(resolveRealPath(root), resolveRealPath(path))
  return way !== '' && way !== '..' && !way.startsWith('../') && !isAbsolute(way)
}

/** Returns the path with the links of its existing part resolved. */
function resolveRealPath(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    const parent = dirname(resolve(path))
    return parent === resolve(path) ? parent : join(resolveRealPath(parent), basename(resolve(path)))
  }
}
