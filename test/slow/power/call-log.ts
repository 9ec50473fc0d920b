/** The log of the shim: system calls that changed files, in order. */
import { existsSync, readFileSync } from 'node:fs'

export interface SystemCall {
  kind: 'write' | 'sync' | 'truncate' | 'unlink'
  file: string
  /** The position of a write; the new size of a truncation. */
  offset: number
  data: Buffer
}

const KINDS = { w: 'write', s: 'sync', t: 'truncate', u: 'unlink' } as const

export function readLog(path: string): SystemCall[] {
  const log = existsSync(path) ? readFileSync(path) : Buffer.alloc(0)
  const calls: SystemCall[] = []
  let index = 0
  while (index < log.length) {
    const kind = KINDS[String.fromCharCode(log[index]!) as keyof typeof KINDS]
    const nameLength = log.readUInt16LE(index + 1)
    const file = log.toString('utf8', index + 3, index + 3 + nameLength)
    index += 3 + nameLength
    const offset = Number(log.readBigUInt64LE(index))
    const length = log.readUInt32LE(index + 8)
    index += 12
    calls.push({ kind, file, offset, data: log.subarray(index, index + length) })
    index += length
  }
  return calls
}
