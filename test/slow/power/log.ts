/** The log of the shim: system calls that changed files, in order. */
import { existsSync, readFileSync } from 'node:fs'

export interface Noted {
  kind: 'write' | 'sync' | 'truncate' | 'unlink'
  file: string
  /** The position of a write; the new size of a truncation. */
  offset: number
  data: Buffer
}

const KINDS = { w: 'write', s: 'sync', t: 'truncate', u: 'unlink' } as const

export function readLog(path: string): Noted[] {
  const log = existsSync(path) ? readFileSync(path) : Buffer.alloc(0)
  const noted: Noted[] = []
  let at = 0
  while (at < log.length) {
    const kind = KINDS[String.fromCharCode(log[at]!) as keyof typeof KINDS]
    const nameLength = log.readUInt16LE(at + 1)
    const file = log.toString('utf8', at + 3, at + 3 + nameLength)
    at += 3 + nameLength
    const offset = Number(log.readBigUInt64LE(at))
    const length = log.readUInt32LE(at + 8)
    at += 12
    noted.push({ kind, file, offset, data: log.subarray(at, at + length) })
    at += length
  }
  return noted
}
