/**
 * The files that belong to the program: beside the code in a checkout, inside of the standalone executable. Code names
 * them relative to itself, as `new URL(…, import.meta.url)`; the build puts inside whatever is named like that, and
 * makes such a URL begin with {@link INSIDE}. So it does with a library's file that is named as `import.meta.resolve(…)`.
 */
import { existsSync, readFileSync } from 'node:fs'
import { createRequire, getCompileCacheDir } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { getAsset, getAssetKeys, getRawAsset } from 'node:sea'
import { fileURLToPath } from 'node:url'
import { Worker, type WorkerOptions } from 'node:worker_threads'
import { ProxyError } from './errors.ts'
import { type PackedFile, unpack } from './unpack.ts'

/** Stands for the root of the checkout; what follows is the key of the asset. */
export const INSIDE = 'llm-proxy:///'

/** Starts a thread on a file of code. */
export function startThread(code: URL, options: WorkerOptions): Worker {
  if (!isInside(code)) return new Worker(code, { ...options, env: threadEnvironment() })
  return new Worker(getAsset(getAssetKey(code), 'utf8'), { ...options, eval: true })
}

/** A thread looks for compiled code where the process does only if its environment says so. */
function threadEnvironment(): NodeJS.ProcessEnv {
  const folder = getCompileCacheDir()
  return folder === undefined ? process.env : { ...process.env, NODE_COMPILE_CACHE: dirname(folder) }
}

/**
 * The path of a folder, for code that reads the files in it by path.
 * @throws ProxyError `start_failed` if it has to be unpacked and cannot be
 */
export function folderPath(folder: URL): string {
  if (!isInside(folder)) return fileURLToPath(folder)
  const keys = getAssetKeys().filter((key) => key.startsWith(`${getAssetKey(folder)}/`))
  return unpack(keys.map(packedFile))
}

/** A file's content. @throws the file system's error, or one that names the asset, if there is none */
export function readAsset(file: URL): Uint8Array {
  return isInside(file) ? new Uint8Array(getRawAsset(getAssetKey(file))) : readFileSync(file)
}

/**
 * The path of the folder that files of one folder are in, for code that reads them by path.
 * @throws ProxyError `start_failed` if they have to be unpacked and cannot be
 */
export function filesPath(files: readonly [URL, ...URL[]]): string {
  if (!isInside(files[0])) return dirname(fileURLToPath(files[0]))
  return unpack(files.map((file) => packedFile(getAssetKey(file))))
}

/**
 * Loads a native module; for the standalone executable only, the build calls it where a library requires a `.node` file.
 * All threads load one and the same file: two copies of SQLite in a process would undo each other's file locks
 * (https://www.sqlite.org/howtocorrupt.html, section 2.2.1).
 * @throws ProxyError `start_failed`
 */
export function loadAddon(key: string): unknown {
  const path = join(unpack([packedFile(key)]), basename(key))
  const module = { exports: {} }
  try {
    process.dlopen(module, path)
  } catch (cause) {
    const message = `${path} cannot be loaded, set TMPDIR to a directory that may hold programs: ${(cause as Error).message}`
    throw new ProxyError('start_failed', message, { cause })
  }
  return module.exports
}

/**
 * A native module of our own, which is built where there is what builds it.
 * @returns undefined: it was not built
 * @throws ProxyError `start_failed`, or the system's error, if it is there and cannot be loaded
 */
export function loadOwnAddon(file: URL): unknown {
  if (isInside(file))
    return getAssetKeys().includes(getAssetKey(file)) ? loadAddon(getAssetKey(file)) : undefined
  const path = fileURLToPath(file)
  return existsSync(path) ? createRequire(path)(path) : undefined
}

function isInside(url: URL): boolean {
  return url.href.startsWith(INSIDE)
}

function getAssetKey(url: URL): string {
  return url.href.slice(INSIDE.length)
}

function packedFile(key: string): PackedFile {
  return { name: basename(key), content: new Uint8Array(getRawAsset(key)) }
}
