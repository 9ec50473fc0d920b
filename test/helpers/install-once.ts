/**
 * Programs, Python environments and models that tests install once for all clones on a machine. Their folders are in
 * `${XDG_CACHE_HOME:-~/.cache}/llm-proxy`; each name contains a digest of the folder's contents.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import Database from 'better-sqlite3'

/** The project's folder on this machine. */
export const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'llm-proxy')

const POLL_MS = 250

/** Returns a digest of the contents of a folder, for its name. */
export function digest(...parts: readonly (string | Buffer)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(part)
  return hash.digest('hex').slice(0, 12)
}

/**
 * Installs into a folder, unless it is complete. One process installs and others wait for it; an interrupted
 * installation is removed first. The file `ready` is written last: a Python environment contains its own path, so it
 * cannot be created in another folder and renamed. The file `used` has the time of the last use, for `remove_unused` of
 * `tools/install-once`.
 */
export async function installOnce(
  folder: string,
  install: (folder: string) => Promise<unknown>,
): Promise<void> {
  await installIfMissing(folder, install)
  writeFileSync(join(folder, 'used'), '')
}

async function installIfMissing(
  folder: string,
  install: (folder: string) => Promise<unknown>,
): Promise<void> {
  const ready = join(folder, 'ready')
  if (existsSync(ready)) return
  mkdirSync(dirname(folder), { recursive: true })
  const release = await lock(`${folder}.lock`)
  try {
    if (existsSync(ready)) return
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(folder)
    await install(folder)
    writeFileSync(ready, '')
  } finally {
    release()
  }
}

/** Acquires a lock between processes, which the operating system releases when its process ends. */
async function lock(path: string): Promise<() => void> {
  const database = new Database(path, { timeout: 0 })
  for (;;) {
    try {
      database.exec('BEGIN EXCLUSIVE')
      return () => database.close()
    } catch (error) {
      if ((error as { code?: string }).code !== 'SQLITE_BUSY') throw error
    }
    await sleep(POLL_MS)
  }
}
