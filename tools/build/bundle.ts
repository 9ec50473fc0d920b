/** Bundles the program and each of its threads into one script each, and finds the files that they need. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { createRequire, isBuiltin } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { type BuildOptions, build, type Metafile, type Plugin } from 'esbuild'
import { EMBEDDED_ROOT } from '../../src/base/assets.ts'
import { HOST } from './node-base.ts'

export interface Bundle {
  /** The program as one CommonJS script. */
  main: string
  /** The assets that {@link EMBEDDED_ROOT} URLs and native modules refer to, by key. */
  assets: ReadonlyMap<string, Uint8Array>
}

/** Optional libraries that the executable does not include. */
const ABSENT = ['bufferutil', 'utf-8-validate', 'pg-native']

/** The expression with which the code refers to a library's file. */
const LIBRARY_FILE = /import\.meta\.resolve\('([^']+)'\)/g

/** The bundler's own helpers, which it lists among the imports. */
const HELPERS = '<runtime>'

/** What a program contains. Default: all commands and products. */
export interface ProgramContents {
  /** The entry point, relative to the checkout. */
  entry?: string
  /** Names of products that are left out, as `src/products.ts` exports them. */
  withoutProducts?: readonly string[]
}

/** The list of products, with one line for each. */
const PRODUCTS_FILE = 'src/products.ts'

/** Bundles a program. @param root the checkout @param target operating system and processor, as in `linux-x64` */
export async function bundleProgram(
  root: string,
  target: string,
  { entry = 'tools/build/entry.ts', withoutProducts = [] }: ProgramContents = {},
): Promise<Bundle> {
  const assets = new Map<string, Uint8Array>()
  const threads: string[] = []
  const found: FoundFiles = {
    onThread: (path) => threads.push(path),
    onFile: (path) => assets.set(relative(root, path), readFileSync(path)),
  }
  const plugins = [withoutExports(join(root, PRODUCTS_FILE), withoutProducts), ownFiles(root, target, found)]
  const bundle = (path: string) => bundleScript(root, target, path, [...plugins, nativeModules(root, found)])
  const main = await bundle(join(root, entry))
  // A thread may refer to another one, which is then appended to the list.
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

async function bundleScript(root: string, target: string, entry: string, plugins: Plugin[]): Promise<string> {
  const options = {
    entryPoints: [entry],
    absWorkingDir: root,
    bundle: true,
    write: false,
    metafile: true,
    platform: 'node',
    // Node 24 accepts no other format in an executable, nor for a thread that is given as text.
    format: 'cjs',
    target: 'node24',
    external: ABSENT,
    // Entry points that load the native module directly instead of searching for it.
    alias: {
      'better-sqlite3': `better-sqlite3/${target}`,
      tokenizers: `tokenizers/tokenizers.${target.startsWith('linux') ? `${target}-gnu` : target}.node`,
    },
    logLevel: 'warning',
    plugins,
  } as const satisfies BuildOptions
  const { outputFiles, metafile } = await build(options)
  refuseMissingLibraries(metafile)
  return outputFiles[0]!.text
}

/** Leaves out exports of a file that has one line for each. @throws Error for an unknown name */
function withoutExports(path: string, names: readonly string[]): Plugin {
  return {
    name: 'without-exports',
    setup({ onLoad }) {
      if (names.length === 0) return
      onLoad({ filter: /[\\/]products\.ts$/ }, (loaded) => {
        if (loaded.path !== path) return undefined
        const lines = readFileSync(path, 'utf8').split('\n')
        const excluded = lines.filter((line) => names.some((name) => line.startsWith(`export * as ${name} `)))
        if (excluded.length !== names.length) throw new Error(`Unknown product among ${names.join(', ')}`)
        return { contents: lines.filter((line) => !excluded.includes(line)).join('\n'), loader: 'ts' }
      })
    },
  }
}

/**
 * Collects the files that `new URL('./…', import.meta.url)` refers to in this repository's code, and libraries' files,
 * and rewrites them to URLs of assets.
 */
function ownFiles(root: string, target: string, found: FoundFiles): Plugin {
  return {
    name: 'own-files',
    setup({ onLoad }) {
      onLoad({ filter: /\.ts$/ }, ({ path }) => {
        const source = readFileSync(path, 'utf8')
        for (const [, name] of source.matchAll(/new URL\('([^']+)', import\.meta\.url\)/g)) {
          const named = resolve(dirname(path), name!)
          // A file outside of `src/` exists only in a checkout: its launcher.
          if (!named.startsWith(join(root, 'src/'))) continue
          // The addon is built only for this machine, and only if cargo is available.
          if (named.endsWith('.node') && !(target === HOST && existsSync(named))) continue
          if (named.endsWith('.ts')) found.onThread(named)
          else for (const file of filesOf(named)) found.onFile(file)
        }
        const inside = (file: string) => JSON.stringify(EMBEDDED_ROOT + relative(root, file))
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

/** Rejects a bundle with missing libraries: in the executable only Node's own modules can be required. */
function refuseMissingLibraries({ inputs }: Metafile): void {
  const missing = Object.entries(inputs).flatMap(([file, { imports }]) =>
    imports
      .filter(({ path, external }) => external && !isBuiltin(path) && ![...ABSENT, HELPERS].includes(path))
      .map(({ path }) => `${file} needs ${path}`),
  )
  if (missing.length > 0) throw new Error(`the executable would lack a library: ${missing.join(', ')}`)
}
