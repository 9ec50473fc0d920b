/**
 * Part of `npm run setup` and of the builds: starts Python once and saves a snapshot of its memory, with Jinja2 and
 * this repository's modules imported. Does nothing if the snapshot is up to date.
 */
import { renameSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { constants, zstdCompressSync } from 'node:zlib'
import {
  bootWithout,
  computeSnapshotKey,
  isSnapshotCurrent,
  SNAPSHOT,
} from '../src/proxy/tokens/templates/python/boot.ts'

/** Compresses to a sixth of the size in a second. */
const LEVEL = 9

if (!(await isSnapshotCurrent())) await makeSnapshot()

async function makeSnapshot(): Promise<void> {
  const python = await bootWithout(undefined, true)
  const params = { [constants.ZSTD_c_compressionLevel]: LEVEL }
  const picture = zstdCompressSync(python.makeMemorySnapshot(), { params })
  const path = fileURLToPath(SNAPSHOT)
  writeFileSync(
    `${path}.${process.pid}`,
    Buffer.concat([Buffer.from(computeSnapshotKey(), 'latin1'), picture]),
  )
  renameSync(`${path}.${process.pid}`, path)
}
