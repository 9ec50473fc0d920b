/**
 * CPython in WebAssembly with Jinja2 in it: Pyodide from npm, Jinja2 and MarkupSafe from `vendor/`. Nothing is fetched
 * over a network. Starting it takes seconds, which a picture of its memory spares (`make-snapshot.ts`).
 */
import { hash } from 'node:crypto'
import { zstdDecompressSync } from 'node:zlib'
import { loadPyodide, type PyodideAPI, version } from 'pyodide'
import { filesPath, readOwnFile } from '../../standalone/own-files.ts'

/** Its own files that it runs from. */
const PYODIDE_FILES: [URL, ...URL[]] = [
  new URL(import.meta.resolve('pyodide/pyodide.asm.mjs')),
  new URL(import.meta.resolve('pyodide/pyodide.asm.wasm')),
  new URL(import.meta.resolve('pyodide/python_stdlib.zip')),
]

const WHEELS = [
  new URL('./vendor/jinja2-3.1.6-py3-none-any.whl', import.meta.url),
  new URL('./vendor/markupsafe-3.0.4-cp314-cp314-win_arm64.whl', import.meta.url),
]

/** Made by `npm run setup`, and put into the executable and the package by their builds. */
export const SNAPSHOT = new URL('./python.snapshot', import.meta.url)

/** A snapshot's first bytes say what it was made of. */
export const KEY_LENGTH = 64

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

/** @returns Python that can import Jinja2, from the snapshot where there is one that fits */
export async function bootPython(): Promise<PyodideAPI> {
  const snapshot = readSnapshot()
  if (snapshot === undefined) return await bootWithout()
  return await loadPyodide({ ...options(), _loadSnapshot: snapshot })
}

/** The slow way; seconds. */
export async function bootWithout(forSnapshot = false): Promise<PyodideAPI> {
  const python = await loadPyodide({ ...options(), _makeSnapshot: forSnapshot })
  for (const [index, wheel] of WHEELS.entries())
    python.FS.writeFile(`/lib/wheel-${index}.whl`, readOwnFile(wheel))
  python.runPython(WARM_UP)
  return python
}

/** Differs for snapshots of other contents. */
export function snapshotKey(): string {
  const wheels = WHEELS.map((wheel) => hash('sha256', readOwnFile(wheel)))
  return hash('sha256', JSON.stringify([version, WARM_UP, ...wheels]))
}

function readSnapshot(): Uint8Array | undefined {
  let file: Uint8Array
  try {
    file = readOwnFile(SNAPSHOT)
  } catch {
    return undefined
  }
  const key = Buffer.from(file.subarray(0, KEY_LENGTH)).toString('latin1')
  return key === snapshotKey() ? zstdDecompressSync(file.subarray(KEY_LENGTH)) : undefined
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
