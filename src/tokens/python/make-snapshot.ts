/** Part of `npm run setup`: starts Python once and keeps a picture of its memory, with Jinja2 imported. */
import { renameSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { constants, zstdCompressSync } from 'node:zlib'
import { bootWithout, SNAPSHOT, snapshotKey } from './boot.ts'

/** A sixth of the size in a second. */
const LEVEL = 9

const python = await bootWithout(true)
const params = { [constants.ZSTD_c_compressionLevel]: LEVEL }
const picture = zstdCompressSync(python.makeMemorySnapshot(), { params })
const path = fileURLToPath(SNAPSHOT)
writeFileSync(`${path}.${process.pid}`, Buffer.concat([Buffer.from(snapshotKey(), 'latin1'), picture]))
renameSync(`${path}.${process.pid}`, path)
