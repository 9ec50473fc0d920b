/**
 * Starts CPython in WebAssembly with Jinja2 and transformers' response parser. Pyodide is from npm and the other
 * packages from `vendor/`; nothing is fetched over the network. A start takes seconds, or a third of a second from a
 * snapshot of Python's memory (`make-snapshot.ts`). The snapshot includes the proxy's own modules, which are imported
 * again if they have changed since.
 */
import { hash } from 'node:crypto'
import { zstdDecompressSync } from 'node:zlib'
import { loadPyodide, type PyodideAPI, version } from 'pyodide'
import type { PyProxy } from 'pyodide/ffi'
import { getFilesPath, readAsset } from '../../../../base/assets.ts'

/** The files of Pyodide. */
const PYODIDE_FILES: [URL, ...URL[]] = [
  new URL(import.meta.resolve('pyodide/pyodide.asm.mjs')),
  new URL(import.meta.resolve('pyodide/pyodide.asm.wasm')),
  new URL(import.meta.resolve('pyodide/python_stdlib.zip')),
]

const WHEELS = [
  new URL('./vendor/jinja2-3.1.6-py3-none-any.whl', import.meta.url),
  new URL('./vendor/markupsafe-3.0.4-cp314-cp314-win_arm64.whl', import.meta.url),
  new URL('./vendor/transformers-5.24.0-chat_parsing.zip', import.meta.url),
]

/** The snapshot, which `npm run setup` creates and the builds add to the executable and the package. */
export const SNAPSHOT = new URL('./python.snapshot', import.meta.url)

/** The length of the key at the beginning of a snapshot, which identifies its contents. */
const KEY_LENGTH = 64

/** The chunk size for decompressing a snapshot. It exceeds the size of Python's memory, 30 MiB. */
const CHUNK_BYTES = 32 * 1024 ** 2

/** Python files by module name, in the order in which they import each other. */
type Modules = Readonly<Record<string, URL>>

export const MODULES: Modules = {
  specialize: new URL('./specialize.py', import.meta.url),
  template_messages: new URL('./template_messages.py', import.meta.url),
  template_words: new URL('./template_words.py', import.meta.url),
  harmony: new URL('./harmony.py', import.meta.url),
  chat_templates: new URL('./chat_templates.py', import.meta.url),
  encoder_words: new URL('./encoder_words.py', import.meta.url),
  encoder_tracing: new URL('./encoder_tracing.py', import.meta.url),
  model_encoder: new URL('./model_encoder.py', import.meta.url),
  regex: new URL('./regex.py', import.meta.url),
  response_reader: new URL('./response_reader.py', import.meta.url),
}

const SITE_PACKAGES = '/lib/python3.14/site-packages'

/**
 * Python code that imports the modules which templates use, including those that Jinja2 imports only when an error
 * occurs.
 */
const WARM_UP = `
import sys, json, traceback, linecache, pkgutil, importlib
from datetime import datetime
sys.path[:0] = ['/lib/wheel-0.whl', '/lib/wheel-1.whl']
import jinja2
for module in pkgutil.iter_modules(jinja2.__path__):
    importlib.import_module('jinja2.' + module.name)
datetime.now().strftime('%Y')
`

/**
 * Starts Python, from the snapshot if it is current.
 * @param folder see {@link getPyodideFolder}
 * @returns Python with the proxy's modules imported
 */
export async function bootPython(modules = MODULES, folder = getPyodideFolder()): Promise<PyodideAPI> {
  const snapshot = readSnapshot()
  if (snapshot === undefined) return await bootWithout(modules, false, folder)
  const python = await loadPyodide({ ...createOptions(folder), _loadSnapshot: snapshot })
  if (!hasModules(python, modules)) {
    // The snapshot contains memory, but no files.
    writeWheels(python)
    importModules(python, modules)
  }
  return python
}

/** Returns whether the snapshot exists and contains the current modules. */
export async function isSnapshotCurrent(): Promise<boolean> {
  const snapshot = readSnapshot()
  return (
    snapshot !== undefined &&
    hasModules(await loadPyodide({ ...createOptions(getPyodideFolder()), _loadSnapshot: snapshot }), MODULES)
  )
}

/** Returns whether Python has imported the current versions of the modules. */
function hasModules(python: PyodideAPI, modules: Modules): boolean {
  return (python.pyimport('sys') as SysModule).llm_proxy_modules === computeModulesKey(modules)
}

/** Python's `sys` with an attribute that identifies the imported modules. */
interface SysModule extends PyProxy {
  llm_proxy_modules: string | undefined
}

function writeWheels(python: PyodideAPI): void {
  for (const [index, wheel] of WHEELS.entries())
    python.FS.writeFile(`/lib/wheel-${index}.whl`, readAsset(wheel))
}

/** Imports the modules. The snapshot includes them, because importing takes half of the start-up time. */
function importModules(python: PyodideAPI, modules: Modules): void {
  for (const [name, file] of Object.entries(modules)) {
    python.FS.writeFile(`${SITE_PACKAGES}/${name}.py`, readAsset(file))
  }
  const names = JSON.stringify(Object.keys(modules))
  python.runPython(`
import sys, importlib
importlib.invalidate_caches()
for name in ${names}: sys.modules.pop(name, None)
for name in ${names}: importlib.import_module(name)
sys.llm_proxy_modules = '${computeModulesKey(modules)}'
`)
}

function computeModulesKey(modules: Modules): string {
  const digests = Object.entries(modules).map(([name, file]) => [name, hash('sha256', readAsset(file))])
  return hash('sha256', JSON.stringify(digests))
}

/** Starts Python without a snapshot, which takes seconds. */
export async function bootWithout(
  modules = MODULES,
  forSnapshot = false,
  folder = getPyodideFolder(),
): Promise<PyodideAPI> {
  const python = await loadPyodide({ ...createOptions(folder), _makeSnapshot: forSnapshot })
  writeWheels(python)
  python.runPython(WARM_UP)
  importModules(python, modules)
  return python
}

/** Returns the key of a snapshot with the current packages. */
export function computeSnapshotKey(): string {
  const wheels = WHEELS.map((wheel) => hash('sha256', readAsset(wheel)))
  return hash('sha256', JSON.stringify([version, WARM_UP, ...wheels]))
}

function readSnapshot(): Uint8Array | undefined {
  let file: Uint8Array
  try {
    file = readAsset(SNAPSHOT)
  } catch {
    return undefined
  }
  const key = Buffer.from(file.subarray(0, KEY_LENGTH)).toString('latin1')
  // A single chunk halves the time, because thousands of small chunks would be concatenated.
  const options = { chunkSize: CHUNK_BYTES }
  return key === computeSnapshotKey() ? zstdDecompressSync(file.subarray(KEY_LENGTH), options) : undefined
}

/** Returns the folder of Pyodide's files, which the standalone executable unpacks. @throws ProxyError `start_failed` */
export function getPyodideFolder(): string {
  return getFilesPath(PYODIDE_FILES)
}

/** Returns Pyodide's options, which deny access to JavaScript and list no packages to fetch. */
function createOptions(indexURL: string) {
  return {
    indexURL,
    lockFileContents: { info: LOCK_INFO, packages: {} } as never,
    jsglobals: {},
  }
}

const LOCK_INFO = {
  abi_version: '2026_0',
  arch: 'wasm32',
  platform: 'emscripten_5_0_3',
  version,
  python: '3.14.2',
}
