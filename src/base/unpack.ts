/**
 * Writes embedded files to the temporary directory, for the operating system or libraries that load them by path. Their
 * folder is private to the user and named after a digest of their content, so that processes share it and repeated
 * starts leave one copy. An undamaged file is not replaced, because other threads of this process may have loaded it.
 */
import { createHash } from 'node:crypto'
import {
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { threadId } from 'node:worker_threads'
import { ProxyError } from './errors.ts'

/** A file to write to the temporary directory. */
export interface PackedFile {
  name: string
  content: Uint8Array
}

/**
 * Writes the files to a folder that is named after their digest, unless it contains them.
 * @returns the folder that contains the files
 * @throws ProxyError `start_failed` if the temporary directory cannot be used
 */
export function unpack(files: readonly PackedFile[]): string {
  try {
    const folder = join(getPrivateFolder(), digest(files))
    makeFolder(folder)
    for (const { name, content } of files) {
      const path = join(folder, name)
      if (!hasContent(path, content)) writeAtomically(path, content)
    }
    return folder
  } catch (cause) {
    throw createUnusableError(cause)
  }
}

/**
 * The name of the file that is written last. It contains a digest of the others, because a power failure may leave
 * partial files.
 */
const DIGEST_FILE = 'digest'

/**
 * Returns the path of a folder of files that take long to generate. They are generated unless an earlier start has
 * stored them.
 * @param key the name of the folder: a digest of everything that the generated content depends on
 * @throws errors of `make`, and ProxyError `start_failed` if the temporary directory cannot be used
 */
export function unpackGenerated(key: string, make: () => readonly PackedFile[]): string {
  const folder = getFolder(key)
  if (isComplete(folder)) return folder
  const files = make().toSorted((a, b) => (a.name < b.name ? -1 : 1))
  try {
    for (const { name, content } of files) writeAtomically(join(folder, name), content)
    writeAtomically(join(folder, DIGEST_FILE), Buffer.from(digest(files)))
    return folder
  } catch (cause) {
    throw createUnusableError(cause)
  }
}

function getFolder(name: string): string {
  try {
    const folder = join(getPrivateFolder(), name)
    makeFolder(folder)
    return folder
  } catch (cause) {
    throw createUnusableError(cause)
  }
}

/**
 * Returns whether the folder's files match the digest that was stored when they were written. The digest covers the
 * files in the order of their names.
 */
function isComplete(folder: string): boolean {
  try {
    const names = readdirSync(folder).filter((name) => name !== DIGEST_FILE && !/\.\d+\.\d+$/.test(name))
    const files = names.sort().map((name) => ({ name, content: readFileSync(join(folder, name)) }))
    return readFileSync(join(folder, DIGEST_FILE), 'utf8') === digest(files)
  } catch {
    return false
  }
}

function createUnusableError(cause: unknown): ProxyError {
  const message = `cannot unpack into ${tmpdir()}, set TMPDIR to another directory: ${(cause as Error).message}`
  return new ProxyError('start_failed', message, { cause })
}

/**
 * Returns the path of the user's private folder, and creates it if necessary.
 * @throws Error if other users can access it: all users can write to the temporary directory, and one may have created
 *   a folder of this name
 */
function getPrivateFolder(): string {
  const own = process.getuid!()
  const path = join(tmpdir(), `llm-proxy-${own}`)
  makeFolder(path)
  const found = lstatSync(path)
  const isOursAlone = found.isDirectory() && found.uid === own && (found.mode & 0o077) === 0
  if (!isOursAlone) throw new Error(`${path} is not a directory that only this user can access`)
  return path
}

function makeFolder(path: string): void {
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
}

function digest(files: readonly PackedFile[]): string {
  const hash = createHash('sha256')
  for (const { name, content } of files) hash.update(`${name} ${content.length}\n`).update(content)
  return hash.digest('hex').slice(0, 16)
}

/** Returns whether the file has this content. A power failure may have left a partial file. */
function hasContent(path: string, content: Uint8Array): boolean {
  try {
    return readFileSync(path).equals(content)
  } catch {
    return false
  }
}

/** Writes a file atomically. If several threads and processes do so at the same time, all use the file of the first. */
function writeAtomically(path: string, content: Uint8Array): void {
  const unfinished = `${path}.${process.pid}.${threadId}`
  writeFileSync(unfinished, content, { mode: 0o600 })
  try {
    linkSync(unfinished, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    if (!hasContent(path, content)) renameSync(unfinished, path)
  } finally {
    rmSync(unfinished, { force: true })
  }
}
