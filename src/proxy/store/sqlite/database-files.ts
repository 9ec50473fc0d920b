/** The database's files: accessible to their owner only, and checked for replacement after they were opened. */
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

/**
 * The mode of the files, which contain prompts and completions of all sessions. SQLite creates `-wal` and `-shm` with
 * the mode of the database.
 */
const OWNER_ONLY = 0o600

/**
 * The size of the probe, which exceeds that of most turns: a commit of a few bytes succeeds even on a disk that is too
 * full for any turn.
 */
const PROBE_BYTES = 1024 * 1024

/** Creates a missing file as an empty one, which is a new database. @throws the file system's error */
export function createOwnerOnly(path: string): void {
  if (!existsSync(path)) closeSync(openSync(path, 'a', OWNER_ONLY))
}

/** Removes the access of other users to files that earlier versions created. A file of another owner keeps its mode. */
export function restrictToOwner(path: string): void {
  for (const file of [...listFiles(path), `${path}-shm`]) {
    try {
      if ((statSync(file).mode & 0o077) !== 0) chmodSync(file, OWNER_ONLY)
    } catch {
      // The file is missing, or another user owns it.
    }
  }
}

/**
 * A check that the files of an open database still exist. SQLite continues to write to removed files, and these commits
 * are lost when the process ends. Therefore each commit verifies that the names still lead to the files that were
 * opened, and fails otherwise.
 */
export class DatabaseFiles {
  /** The identity of each file, once it exists: the log is created by the first commit. */
  readonly #identities = new Map<string, string | undefined>()
  readonly #probe: string
  #lost: ProxyError | undefined

  /** @param path a database that is open and locked */
  constructor(path: string) {
    this.#probe = `${realpathSync(path)}.probe`
    for (const file of listFiles(realpathSync(path))) this.#identities.set(file, getIdentity(file))
  }

  /**
   * Checks the files.
   * @throws ProxyError `store_failed` if a file is, or at an earlier check was, missing or replaced
   */
  check(): void {
    for (const [file, known] of this.#identities) {
      const now = getIdentity(file)
      if (known === undefined) this.#identities.set(file, now)
      else if (now !== known) {
        const message = `${file} was removed or replaced while llm-proxy had it open: put the files back, or restart it`
        this.#lost ??= new ProxyError('store_failed', message)
      }
    }
    if (this.#lost !== undefined) throw this.#lost
  }

  /**
   * Checks for free disk space: writes a file beside the database and removes it.
   * @throws ProxyError `store_failed` if it does not fit
   */
  checkFreeSpace(): void {
    try {
      writeFileSync(this.#probe, Buffer.alloc(PROBE_BYTES), { mode: OWNER_ONLY })
    } catch (cause) {
      const { code = 'unknown error' } = cause as NodeJS.ErrnoException
      const message = `there is not enough disk space for a turn next to the database (${code})`
      throw new ProxyError('store_failed', message, { cause })
    } finally {
      rmSync(this.#probe, { force: true })
    }
  }
}

function listFiles(path: string): string[] {
  return [path, `${path}-wal`, `${path}.lock`]
}

function getIdentity(file: string): string | undefined {
  const stats = statSync(file, { throwIfNoEntry: false })
  return stats && `${stats.dev}:${stats.ino}`
}
