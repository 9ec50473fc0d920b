/** A disk that loses power: synced data remains, and a random part of the rest. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { SystemCall } from './call-log.ts'

/** The remainder of unsynced data: `all`, `none`, or `some`: parts, torn and out of order. */
export type UnsyncedWrites = 'all' | 'none' | 'some'

/** Disks write sectors atomically. */
const SECTOR = 512

interface FileState {
  synced: Buffer
  pending: SystemCall[]
}

export class PowerCut {
  readonly #files = new Map<string, FileState>()

  /** Records a call that was made before the power loss. */
  add(call: SystemCall): void {
    const file = this.#files.get(call.file) ?? { synced: Buffer.alloc(0), pending: [] }
    this.#files.set(call.file, file)
    if (call.kind === 'unlink') this.#files.delete(call.file)
    else if (call.kind === 'sync') {
      file.synced = file.pending.reduce(apply, file.synced)
      file.pending = []
    } else file.pending.push(call)
  }

  /** Writes the files in their state after the power loss. */
  writeFiles(folder: string, unsynced: UnsyncedWrites, random: () => number): void {
    for (const [name, { synced, pending }] of this.#files) {
      const written = unsynced === 'all' ? pending : unsynced === 'none' ? [] : chooseSome(pending, random)
      writeFileSync(join(folder, name), written.reduce(apply, synced))
    }
  }
}

function apply(content: Buffer, { kind, offset, data }: SystemCall): Buffer {
  if (kind === 'truncate') {
    const cut = Buffer.alloc(offset)
    content.copy(cut)
    return cut
  }
  const grown = Buffer.alloc(Math.max(content.length, offset + data.length))
  content.copy(grown)
  data.copy(grown, offset)
  return grown
}

function chooseSome(pending: readonly SystemCall[], random: () => number): SystemCall[] {
  const written = pending.filter(() => random() < 0.5)
  const torn = written.at(Math.floor(random() * written.length))
  return written.map((call) => {
    if (call !== torn || call.kind !== 'write') return call
    const sectors = Math.floor((call.data.length / SECTOR) * random())
    return { ...call, data: call.data.subarray(0, sectors * SECTOR) }
  })
}
