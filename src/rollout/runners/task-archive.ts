import { readdir } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { create } from 'tar'

/**
 * A directory as tar.gz, under its own name: `/data/tasks/hello` becomes `hello/…`. Files are byte for byte, with
 * links, empty directories and who may execute what; owners and times are left out and the order is fixed, so that
 * equal directories give equal archives.
 * @throws the operating system's error
 */
export async function taskArchive(directory: string): Promise<Buffer> {
  const root = resolve(directory)
  const cwd = dirname(root)
  const entries = (await Array.fromAsync(walk(cwd, basename(root)))).sort().map(asPath)
  const options = { cwd, gzip: true, portable: true, mtime: new Date(0), noDirRecurse: true, strict: true }
  return create(options, entries).concat()
}

/** The directory and all that is in it, relative to `cwd`. Links are not followed, as `readdir` would by itself. */
async function* walk(cwd: string, directory: string): AsyncGenerator<string> {
  yield directory
  for (const entry of await readdir(join(cwd, directory), { withFileTypes: true })) {
    const path = `${directory}/${entry.name}`
    if (entry.isDirectory()) yield* walk(cwd, path)
    else yield path
  }
}

/** The library takes a name that begins with @ for an archive whose entries are meant. */
function asPath(entry: string): string {
  return entry.startsWith('@') ? `./${entry}` : entry
}
