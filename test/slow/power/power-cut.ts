/** A disk that loses power: synced data remains, and a random part of the rest. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Noted } from './log.ts'

/** The remainder of unsynced data: `all`, `none`, or `some`: parts, torn and out of order. */
export type KeptWrites = 'all' | 'none' | 'some'

/** Disks write sectors atomically. */
const SECTOR = 512

interface OnDisk {
  synced: Buffer
  pending: Noted[]
}

export class PowerCut {
  readonly #files = new Map<string, OnDisk>()

  /** Records a call that was made before the power loss. */
  add(noted: Noted): void {
    const file = this.#files.get(noted.file) ?? { synced: Buffer.alloc(0), pending: [] }
    this.#files.set(noted.file, file)
    if (noted.kind === 'unlink') this.#files.delete(noted.file)
    else if (noted.kind === 'sync') {
      file.synced = file.pending.reduce(apply, file.synced)
      file.pending = []
    } else file.pending.push(noted)
  }

  /** Writes the files in their state after the power loss. */
  leave(folder: string, left: KeptWrites, random: () => number): void {
    for (const [name, { synced, pending }] of this.#files) {
      const written = left === 'all' ? pending : left === 'none' ? [] : some(pending, random)
      writeFileSync(join(folder, name), written.reduce(apply, synced))
    }
  }
}

function apply(content: Buffer, { kind, offset, data }: Noted): Buffer {
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

function some(pending: readonly Noted[], random: () => number): Noted[] {
  const written = pending.filter(() => random() < 0.5)
  const torn = written.at(Math.floor(random() * written.length))
  return written.map((noted) => {
    if (noted !== torn || noted.kind !== 'write') return noted
    const sectors = Math.floor((noted.data.length / SECTOR) * random())
    return { ...noted, data: noted.data.subarray(0, sectors * SECTOR) }
  })
}
