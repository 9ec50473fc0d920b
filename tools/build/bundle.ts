/** Makes one script of the program, one of each of its threads, and finds the files that go with them. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { createRequire, isBuiltin } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { type BuildOptions, build, type Metafile, type Plugin } from 'esbuild'
import { INSIDE } from '../../src/base/assets.ts'
import { HOST } from './node-base.ts'

export interface Bundle {
  /** The program as one CommonJS script. */
  main: string
  /** What {@link INSIDE} URLs and native modules refer to, by key. */
  assets: ReadonlyMap<string, Uint8Array>
}

/** Libraries that are used where they are installed, and that the executable does without. */
const ABSENT = ['bufferutil', 'utf-8-validate', 'pg-native']

/** How our code names a library's file that it reads. */
const LIBRARY_FILE = /import\.meta\.resolve\('([^']+)'\)/g

/** The bundler's own helpers, which it lists among the imports. */
const HELPERS = '<runtime>'

/**
 * @param root the checkout
 * @param target operating system and processor, as in `linux-x64`
 */
export async function bundleProgram(root: string, target: string): Promise<Bundle> {
  const assets = new Map<string, Uint8Array>()
  const threads: string[] = []
  const found: FoundFiles = {
    onThread: (path) => threads.push(path),
    onFile: (path) => assets.set(relative(root, path), readFileSync(path)),
  }
  const bundle = (entry: string) => bundleScript(root, target, entry, found)
  const main = await bundle(join(root, 'tools/build/entry.ts'))
  // A thread may name another one, which then joins the end of the list.
  for (const path of threads) {
    const key = relative(root, path)
    if (!assets.has(key)) assets.set(key, Buffer.from(await bundle(path)))
  }
  return { main, assets }
}

interface FoundFiles {
  onThread(path: string): void
  onFile(path: string): void
}

async function bundleScript(root: string, target: string, entry: string, found: FoundFiles): Promise<string> {
  const options = {
    entryPoints: [entry],
    absWorkingDir: root,
    bundle: true,
    write: false,
    metafile: true,
    platform: 'node',
    // Node 24 takes nothing else inside an executable, and nothing else for a thread that is given as text.
    format: 'cjs',
    target: 'node24',
    external: ABSENT,
    // Their entry points that find the native module without looking around for one.
    alias: {
      'better-sqlite3': `better-sqlite3/${target}`,
      tokenizers: `tokenizers/tokenizers.${target.startsWith('linux') ? `${target}-gnu` : target}.node`,
    },
    logLevel: 'warning',
    plugins: [ownFiles(root, target, found), nativeModules(root, found)],
  } as const satisfies BuildOptions
  const { outputFiles, metafile } = await build(options)
  refuseMissingLibraries(metafile)
  return outputFiles[0]!.text
}

/** Collects what `new URL('./…', import.meta.url)` names in our own code, and library's files, and makes URLs of assets of them. */
function ownFiles(root: string, target: string, found: FoundFiles): Plugin {
  return {
    name: 'own-files',
    setup({ onLoad }) {
      onLoad({ filter: /\.ts$/ }, ({ path }) => {
        const source = readFileSync(path, 'utf8')
        for (const [, name] of source.matchAll(/new URL\('([^']+)', import\.meta\.url\)/g)) {
          const named = resolve(dirname(path), name!)
          // What lies outside is what only a checkout has: its launcher.
          if (!named.startsWith(join(root, 'src/'))) continue
          // Built for this machine alone, and only where there is what builds it.
          if (named.endsWith('.node') && !(target === HOST && existsSync(named))) continue
          if (named.endsWith('.ts')) found.onThread(named)
          else for (const file of filesOf(named)) found.onFile(file)
        }
        const inside = (file: string) => JSON.stringify(INSIDE + relative(root, file))
        const contents = source
          .replaceAll('import.meta.url', inside(path))
          .replaceAll(LIBRARY_FILE, (_, name: string) => {
            const file = createRequire(path).resolve(name)
            found.onFile(file)
            return inside(file)
          })
        return { contents, loader: 'ts' }
      })
    },
  }
}

function filesOf(path: string): string[] {
  if (!statSync(path).isDirectory()) return [path]
  return readdirSync(path).map((name) => join(path, name))
}

function nativeModules(root: string, found: FoundFiles): Plugin {
  const loader = JSON.stringify(join(root, 'src/base/assets.ts'))
  return {
    name: 'native-modules',
    setup({ onLoad }) {
      onLoad({ filter: /\.node$/ }, ({ path }) => {
        found.onFile(path)
        const key = JSON.stringify(relative(root, path))
        return { contents: `module.exports = require(${loader}).loadAddon(${key})`, loader: 'js' }
      })
    },
  }
}

/** Inside of the executable only Node's own modules can be required: what is missing must show here. */
function refuseMissingLibraries({ inputs }: Metafile): void {
  const missing = Object.entries(inputs).flatMap(([file, { imports }]) =>
    imports
      .filter(({ path, external }) => external && !isBuiltin(path) && ![...ABSENT, HELPERS].includes(path))
      .map(({ path }) => `${file} needs ${path}`),
  )
  if (missing.length > 0) throw new Error(`the executable would lack a library: ${missing.join(', ')}`)
}
