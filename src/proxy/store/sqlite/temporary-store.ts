/**
 * Temporary databases (`--db memory`). Each is in a folder that only its owner can access, and that is named after its
 * process: a killed process cannot remove its folder, so the next process to start does.
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
/**
 * Matches the name of a folder: pid and start of its process, and the suffix of `mkdtemp`, because one process may have
 * several.
 */
const NAME = /^llm-proxy\.(\d+)\.((?:[0-9a-f-]+_\d+)?)\.[A-Za-z0-9]{6}$/

/** Opens a temporary store. @throws ProxyError `start_failed` with a remedy */
export async function openTemporaryStore(
  options: Pick<SqliteStoreOptions, 'onCommit' | 'searchIndex' | 'logger' | 'spawn'>,
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
    // `mkdtemp` creates it with mode 0700, https://nodejs.org/api/fs.html#fspromisesmkdtempprefix-options.
    return mkdtempSync(join(root, `llm-proxy.${process.pid}.${getStart(process.pid)}.`))
  } catch (cause) {
    const message = `--db memory cannot create a folder in ${root}: ${(cause as Error).message}; set TMPDIR to another directory`
    throw new ProxyError('start_failed', message, { cause })
  }
}

/** Returns the start of a process as a part of the name; empty if the system does not report it. */
function getStart(pid: number): string {
  return getProcessStart(pid)?.replace(' ', '_') ?? ''
}

function isLeftOver(root: string, name: string): boolean {
  const [, pid, start] = NAME.exec(name) ?? []
  if (pid === undefined || isAlive(Number(pid), start?.replace('_', ' ') || undefined)) return false
  const folder = join(root, name)
  const stats = lstatSync(folder, { throwIfNoEntry: false })
  return (
    stats?.isDirectory() === true && stats.uid === process.getuid?.() && isUnlocked(join(folder, DATABASE))
  )
}

/**
 * Returns whether no process has locked the database. Processes of another container may share this folder, and their
 * pids are unknown here.
 */
function isUnlocked(path: string): boolean {
  if (!existsSync(path)) return true
  try {
    lockForWriting(path).unlock()
    return true
  } catch {
    return false
  }
}

/** Removes a folder, which another starting process may be removing, too. */
function removeQuietly(folder: string): void {
  try {
    rmSync(folder, { recursive: true, force: true })
  } catch {
    // The next process to start tries again.
  }
}
