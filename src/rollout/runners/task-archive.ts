import { readdir } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { create } from 'tar'

/**
 * Packs a directory as tar.gz under its own name: `/data/tasks/hello` becomes `hello/…`. It contains file contents,
 * links, empty directories and executable bits; owners and times are omitted and the order is fixed, so that equal
 * directories give equal archives.
 * @throws the operating system's error
 */
export async function packTask(directory: string): Promise<Buffer> {
  const root = resolve(directory)
  const cwd = dirname(root)
  const entries = (await Array.fromAsync(walk(cwd, basename(root)))).sort().map(asPath)
  const options = { cwd, gzip: true, portable: true, mtime: new Date(0), noDirRecurse: true, strict: true }
  return create(options, entries).concat()
}

/**
 * Yields the directory and its contents relative to `cwd`. Links are not followed; a recursive `readdir` would follow
 * them.
 */
async function* walk(cwd: string, directory: string): AsyncGenerator<string> {
  yield directory
  for (const entry of await readdir(join(cwd, directory), { withFileTypes: true })) {
    const path = `${directory}/${entry.name}`
    if (entry.isDirectory()) yield* walk(cwd, path)
    else yield path
  }
}

/** Escapes a name that begins with @, which the library would read as an archive to include. */
function asPath(entry: string): string {
  return entry.startsWith('@') ? `./${entry}` : entry
}
