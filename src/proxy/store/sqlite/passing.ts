/**
 * Databases that end with their process (`--db memory`): each in a folder that only its owner may enter, named by its
 * process. A process that is killed cannot remove its own, so the next one to start does.
 */
import { existsSync, lstatSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { getProcessStart, isAlive } from '../../../base/process-start.ts'
import type { TurnStore } from '../port/turn-store.ts'
import { openSqliteStore, type SqliteStoreOptions } from './open.ts'
import { lockForWriting } from './writer-lock.ts'

const DATABASE = 'turns.db'
/** Number and start of a process, and what `mkdtemp` adds: one process may have several. */
const NAME = /^llm-proxy\.(\d+)\.((?:[0-9a-f-]+_\d+)?)\.[A-Za-z0-9]{6}$/

/** @throws ProxyError `start_failed` saying how to mend it */
export async function openPassingStore(
  options: Pick<SqliteStoreOptions, 'onCommit' | 'searchIndex' | 'onIndexFailed' | 'spawn'>,
): Promise<TurnStore> {
  const folder = newFolder()
  const remove = () => rmSync(folder, { recursive: true, force: true })
  try {
    const path = join(folder, DATABASE)
    return await openSqliteStore({ ...options, path, durability: 'process', onClosed: remove })
  } catch (error) {
    remove()
    throw error
  }
}

function newFolder(): string {
  const root = tmpdir()
  try {
    for (const name of readdirSync(root)) if (isLeftOver(root, name)) removeQuietly(join(root, name))
    // Its mode is 0700, https://nodejs.org/api/fs.html#fspromisesmkdtempprefix-options.
    return mkdtempSync(join(root, `llm-proxy.${process.pid}.${startOf(process.pid)}.`))
  } catch (cause) {
    const message = `--db memory has no folder for its files in ${root}: ${(cause as Error).message}; set TMPDIR to one`
    throw new ProxyError('start_failed', message, { cause })
  }
}

/** As part of a name; empty where the system does not tell. */
function startOf(pid: number): string {
  return getProcessStart(pid)?.replace(' ', '_') ?? ''
}

function isLeftOver(root: string, name: string): boolean {
  const [, pid, start] = NAME.exec(name) ?? []
  if (pid === undefined || isAlive(Number(pid), start?.replace('_', ' ') || undefined)) return false
  const folder = join(root, name)
  const about = lstatSync(folder, { throwIfNoEntry: false })
  return (
    about?.isDirectory() === true && about.uid === process.getuid?.() && isUnlocked(join(folder, DATABASE))
  )
}

/** Processes of another container have other numbers, and may share this folder: the lock is theirs while they live. */
function isUnlocked(path: string): boolean {
  if (!existsSync(path)) return true
  try {
    lockForWriting(path).unlock()
    return true
  } catch {
    return false
  }
}

/** Another process that starts may be removing it as well. */
function removeQuietly(folder: string): void {
  try {
    rmSync(folder, { recursive: true, force: true })
  } catch {
    // The next one to start tries again.
  }
}
