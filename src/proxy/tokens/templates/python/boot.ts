/**
 * CPython in WebAssembly with Jinja2 and transformers' parser of answers in it: Pyodide from npm, the rest from `vendor/`.
 * Nothing is fetched over a network. Starting it takes seconds, which a picture of its memory spares (`make-snapshot.ts`). Our modules are
 * in it as well, and are imported anew where they have changed since.
 */
import { hash } from 'node:crypto'
import { zstdDecompressSync } from 'node:zlib'
import { loadPyodide, type PyodideAPI, version } from 'pyodide'
import type { PyProxy } from 'pyodide/ffi'
import { filesPath, readAsset } from '../../../../base/assets.ts'

/** Its own files that it runs from. */
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

/** Made by `npm run setup`, and put into the executable and the package by their builds. */
export const SNAPSHOT = new URL('./python.snapshot', import.meta.url)

/** A snapshot's first bytes say what it was made of. */
const KEY_LENGTH = 64

/** No less than the picture of Python's memory has, which is 30 MiB. */
const PICTURE_BYTES = 32 * 1024 ** 2

/** Files of Python by their modules' names, in the order in which they import each other. */
type Modules = Readonly<Record<string, URL>>

const MODULES: Modules = {
  template_messages: new URL('./template_messages.py', import.meta.url),
  template_words: new URL('./template_words.py', import.meta.url),
  harmony: new URL('./harmony.py', import.meta.url),
  chat_templates: new URL('./chat_templates.py', import.meta.url),
  regex: new URL('./regex.py', import.meta.url),
  response_reader: new URL('./response_reader.py', import.meta.url),
}

const SITE_PACKAGES = '/lib/python3.14/site-packages'

/** All that the templates' code imports, and what Jinja2 imports only when something goes wrong. */
const WARM_UP = `
import sys, json, traceback, linecache, pkgutil, importlib
from datetime import datetime
sys.path[:0] = ['/lib/wheel-0.whl', '/lib/wheel-1.whl']
import jinja2
for module in pkgutil.iter_modules(jinja2.__path__):
    importlib.import_module('jinja2.' + module.name)
datetime.now().strftime('%Y')
`

/** @returns Python that has imported our modules, from the snapshot where there is one that fits */
export async function bootPython(modules = MODULES): Promise<PyodideAPI> {
  const snapshot = readSnapshot()
  if (snapshot === undefined) return await bootWithout(modules)
  const python = await loadPyodide({ ...options(), _loadSnapshot: snapshot })
  if (!hasModules(python, modules)) {
    // A picture of memory has no files in it.
    writeWheels(python)
    importModules(python, modules)
  }
  return python
}

/** Whether there is a snapshot that nothing has to be added to. */
export async function snapshotFits(): Promise<boolean> {
  const snapshot = readSnapshot()
  return (
    snapshot !== undefined &&
    hasModules(await loadPyodide({ ...options(), _loadSnapshot: snapshot }), MODULES)
  )
}

/** Whether the modules in it are the files as they are now. */
function hasModules(python: PyodideAPI, modules: Modules): boolean {
  return (python.pyimport('sys') as ModulesMark).llm_proxy_modules === modulesKey(modules)
}

/** What Python's `sys` is marked with. */
interface ModulesMark extends PyProxy {
  llm_proxy_modules: string | undefined
}

function writeWheels(python: PyodideAPI): void {
  for (const [index, wheel] of WHEELS.entries())
    python.FS.writeFile(`/lib/wheel-${index}.whl`, readAsset(wheel))
}

/** Takes as long as all else of a start, which is why a snapshot has them. */
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
sys.llm_proxy_modules = '${modulesKey(modules)}'
`)
}

function modulesKey(modules: Modules): string {
  const digests = Object.entries(modules).map(([name, file]) => [name, hash('sha256', readAsset(file))])
  return hash('sha256', JSON.stringify(digests))
}

/** The slow way; seconds. */
export async function bootWithout(modules = MODULES, forSnapshot = false): Promise<PyodideAPI> {
  const python = await loadPyodide({ ...options(), _makeSnapshot: forSnapshot })
  writeWheels(python)
  python.runPython(WARM_UP)
  importModules(python, modules)
  return python
}

/** Differs for snapshots of other contents. */
export function snapshotKey(): string {
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
  // In one chunk instead of copies of thousands: half the time.
  const options = { chunkSize: PICTURE_BYTES }
  return key === snapshotKey() ? zstdDecompressSync(file.subarray(KEY_LENGTH), options) : undefined
}

/** Templates have no business with JavaScript, and the list of packages to fetch is empty. */
function options() {
  return {
    indexURL: filesPath(PYODIDE_FILES),
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
