/**
 * Part of `npm run setup`: replaces the entry points of packages that consist of hundreds of modules by bundles. Node
 * needs about half a millisecond of CPU time to resolve and load one module, and each process loads them again: for
 * TypeBox and tap that is half a second for each command and each test file.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type BuildOptions, build } from 'esbuild'

const PACKAGES = join(import.meta.dirname, '../node_modules')

/** Begins each bundle: an entry point that begins with it has been replaced. */
const MARK = '// Bundled by tools/bundle-packages.ts.'

/** Defines `require` in an ES module. */
const REQUIRE =
  "import * as nodeModule from 'node:module'; const require = nodeModule.createRequire(import.meta.url)"

interface PackageBundle {
  /** The package's folder. */
  folder: string
  /** The entry points, relative to it. Modules that several of them use are written beside the first. */
  entries: string[]
  format: 'esm' | 'cjs'
  /**
   * Whether an ES module contains CommonJS modules that call `require` for Node's own ones. Packages of the product must
   * not: `import.meta.url` is undefined in the executable, which is one CommonJS module.
   */
  callsRequire?: boolean
  /** Packages that stay separate, because other code loads them too and compares what it got. */
  external?: string[]
}

const BUNDLES: PackageBundle[] = [
  {
    folder: 'typebox/build',
    entries: ['index.mjs', 'compile/index.mjs', 'schema/index.mjs', 'value/index.mjs'],
    format: 'esm',
  },
  // The runner loads `@tapjs/processinfo` into each process.
  {
    folder: 'tap/dist/esm',
    entries: ['index.js'],
    format: 'esm',
    callsRequire: true,
    external: ['@tapjs/processinfo'],
  },
  { folder: 'fastify', entries: ['fastify.js'], format: 'cjs', external: ['pino'] },
  { folder: '@fastify/swagger', entries: ['index.js'], format: 'cjs', external: ['fastify-plugin'] },
  { folder: '@fastify/websocket', entries: ['index.js'], format: 'cjs', external: ['ws', 'fastify-plugin'] },
  { folder: 'image-size/dist/esm', entries: ['index.js'], format: 'esm' },
  { folder: 'pg/lib', entries: ['index.js'], format: 'cjs', external: ['pg-native'] },
  { folder: 'undici', entries: ['index.js'], format: 'cjs' },
]

await Promise.all(BUNDLES.map(bundlePackage))

/** Replaces the entry points of a package, unless they have been replaced. */
async function bundlePackage({
  folder,
  entries,
  format,
  callsRequire = false,
  external = [],
}: PackageBundle): Promise<void> {
  const root = join(PACKAGES, folder)
  const paths = entries.map((entry) => join(root, entry))
  if (paths.every((path) => readFileSync(path, 'utf8').startsWith(MARK))) return
  const extension = entries[0]!.slice(entries[0]!.lastIndexOf('.'))
  const options = {
    entryPoints: paths,
    outdir: root,
    outbase: root,
    outExtension: { '.js': extension },
    bundle: true,
    splitting: format === 'esm',
    format,
    platform: 'node',
    target: 'node24',
    external,
    banner: { js: callsRequire ? `${MARK}\n${REQUIRE}` : MARK },
    ...(format === 'cjs' && { footer: { js: await listExports(paths[0]!) } }),
    logLevel: 'error',
    write: false,
    allowOverwrite: true,
  } as const satisfies BuildOptions
  const { outputFiles } = await build(options)
  // By another name first: a package manager may have linked the file to those of other checkouts.
  for (const { path, contents } of outputFiles) {
    writeFileSync(`${path}.${process.pid}`, contents)
    renameSync(`${path}.${process.pid}`, path)
  }
}

/** Returns a statement that is never executed: Node reads from it which names an ES module can import from the package. */
async function listExports(path: string): Promise<string> {
  const names = Object.keys(await import(path)).filter(
    (name) => name !== 'default' && name !== 'module.exports',
  )
  return `0 && (module.exports = { ${names.join(', ')} })`
}
