/**
 * Access to the program's files, which are next to the code in a checkout and embedded in the standalone executable.
 * Code refers to them as `new URL(…, import.meta.url)`; the build embeds each such file and replaces the URL by one
 * that begins with {@link EMBEDDED_ROOT}. It does the same with a library's file that code refers to as
 * `import.meta.resolve(…)`.
 */
import { existsSync, readFileSync } from 'node:fs'
import { createRequire, getCompileCacheDir } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { getAsset, getAssetKeys, getRawAsset } from 'node:sea'
import { fileURLToPath } from 'node:url'
import { compileFunction, constants } from 'node:vm'
import { Worker, type WorkerOptions } from 'node:worker_threads'
import { ProxyError } from './errors.ts'
import { type PackedFile, unpack } from './unpack.ts'

/** The URL prefix of embedded files. The key of the asset follows it. */
export const EMBEDDED_ROOT = 'llm-proxy:///'

/**
 * The command by which a separate process of the standalone executable runs an embedded code file; its argument is the
 * key.
 */
export const CONFINED_COMMAND = 'run-confined-code'

/** Runs an embedded code file in this process. @param key see {@link getEmbeddedKey} */
export function runEmbeddedCode(key: string): void {
  const code = compileFunction(getAsset(key, 'utf8'), ['require', 'module'], {
    filename: key,
    importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  })
  code(createRequire(process.execPath), { exports: {} })
}

/** Returns the asset key of an embedded code file. */
export function getEmbeddedKey(code: URL): string {
  return getAssetKey(code)
}

/** Starts a thread that runs a code file. */
export function startThread(code: URL, options: WorkerOptions): Worker {
  if (!isEmbedded(code)) return new Worker(code, { ...options, env: getThreadEnvironment() })
  return new Worker(getAsset(getAssetKey(code), 'utf8'), { ...options, eval: true })
}

/**
 * Returns the environment of threads. A thread uses the compile cache of the process only if its environment names it.
 */
function getThreadEnvironment(): NodeJS.ProcessEnv {
  const folder = getCompileCacheDir()
  return folder === undefined ? process.env : { ...process.env, NODE_COMPILE_CACHE: dirname(folder) }
}

/**
 * Returns the path of a folder, for code that reads its files by path.
 * @throws ProxyError `start_failed` if an embedded folder cannot be unpacked
 */
export function getFolderPath(folder: URL): string {
  if (!isEmbedded(folder)) return fileURLToPath(folder)
  const keys = getAssetKeys().filter((key) => key.startsWith(`${getAssetKey(folder)}/`))
  return unpack(keys.map(readPackedFile))
}

/** Returns a file's content. @throws the file system's error, or one that names the asset, if it does not exist */
export function readAsset(file: URL): Uint8Array {
  return isEmbedded(file) ? new Uint8Array(getRawAsset(getAssetKey(file))) : readFileSync(file)
}

/**
 * Returns the path of the folder that contains these files, for code that reads them by path.
 * @throws ProxyError `start_failed` if embedded files cannot be unpacked
 */
export function getFilesPath(files: readonly [URL, ...URL[]]): string {
  if (!isEmbedded(files[0])) return dirname(fileURLToPath(files[0]))
  return unpack(files.map((file) => readPackedFile(getAssetKey(file))))
}

/**
 * Loads an embedded native module. The build of the executable replaces a library's `require` of a `.node` file by a
 * call of this function. All threads load the same file: two copies of SQLite in a process would release each other's
 * file locks (https://www.sqlite.org/howtocorrupt.html, section 2.2.1).
 * @throws ProxyError `start_failed`
 */
export function loadAddon(key: string): unknown {
  const path = join(unpack([readPackedFile(key)]), basename(key))
  const module = { exports: {} }
  try {
    process.dlopen(module, path)
  } catch (cause) {
    const message = `${path} cannot be loaded, set TMPDIR to a directory that allows execution: ${(cause as Error).message}`
    throw new ProxyError('start_failed', message, { cause })
  }
  return module.exports
}

/**
 * Loads an optional native module of this repository.
 * @returns undefined if it was not built
 * @throws ProxyError `start_failed`, or the system's error, if it exists and cannot be loaded
 */
export function loadOwnAddon(file: URL): unknown {
  if (isEmbedded(file))
    return getAssetKeys().includes(getAssetKey(file)) ? loadAddon(getAssetKey(file)) : undefined
  const path = fileURLToPath(file)
  return existsSync(path) ? createRequire(path)(path) : undefined
}

function isEmbedded(url: URL): boolean {
  return url.href.startsWith(EMBEDDED_ROOT)
}

function getAssetKey(url: URL): string {
  return url.href.slice(EMBEDDED_ROOT.length)
}

function readPackedFile(key: string): PackedFile {
  return { name: basename(key), content: new Uint8Array(getRawAsset(key)) }
}
