/** The database's files: readable by their owner alone, and still the ones that were opened. */
import {
  chmodSync,
  closeSync,
  existsSync,
  openSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { ProxyError } from '../../../base/errors.ts'

/** Prompts and answers of all sessions are in there. SQLite gives the log and its index the mode of the database. */
const OWNER_ONLY = 0o600

/** More than a turn takes as a rule. A commit of a few bytes still fits into a disk that is full for every turn. */
const ROOM_BYTES = 1024 * 1024

/** An empty file is a new database. @throws the file system's error */
export function createOwnerOnly(path: string): void {
  if (!existsSync(path)) closeSync(openSync(path, 'a', OWNER_ONLY))
}

/** Files of an earlier version were readable by everybody. One of another owner keeps the mode that it was given. */
export function restrictToOwner(path: string): void {
  for (const file of [...filesOf(path), `${path}-shm`]) {
    try {
      if ((statSync(file).mode & 0o077) !== 0) chmodSync(file, OWNER_ONLY)
    } catch {
      // Not there, or not ours.
    }
  }
}

/**
 * SQLite goes on writing to files that were removed: commits into them are lost with the process. So each commit looks
 * whether the names still lead to the files that were opened, and is none if they do not.
 */
export class DatabaseFiles {
  /** What each file is, once it is there: the log comes with the first commit. */
  readonly #identities = new Map<string, string | undefined>()
  readonly #probe: string
  #lost: ProxyError | undefined

  /** @param path of a database that is open and locked */
  constructor(path: string) {
    this.#probe = `${realpathSync(path)}.probe`
    for (const file of filesOf(realpathSync(path))) this.#identities.set(file, identityOf(file))
  }

  /** @throws ProxyError `store_failed` from the first time on that a file was missing or another one */
  check(): void {
    for (const [file, known] of this.#identities) {
      const now = identityOf(file)
      if (known === undefined) this.#identities.set(file, now)
      else if (now !== known) {
        const message = `${file} was removed or replaced while llm-proxy had it open: put the files back, or restart it`
        this.#lost ??= new ProxyError('store_failed', message)
      }
    }
    if (this.#lost !== undefined) throw this.#lost
  }

  /** Writes a file beside the database and removes it. @throws ProxyError `store_failed` if there is no room for it */
  checkRoom(): void {
    try {
      writeFileSync(this.#probe, Buffer.alloc(ROOM_BYTES), { mode: OWNER_ONLY })
    } catch (cause) {
      const { code = 'unknown error' } = cause as NodeJS.ErrnoException
      const message = `there is no room for a turn beside the database (${code})`
      throw new ProxyError('store_failed', message, { cause })
    } finally {
      rmSync(this.#probe, { force: true })
    }
  }
}

function filesOf(path: string): string[] {
  return [path, `${path}-wal`, `${path}.lock`]
}

function identityOf(file: string): string | undefined {
  const stats = statSync(file, { throwIfNoEntry: false })
  return stats && `${stats.dev}:${stats.ino}`
}
