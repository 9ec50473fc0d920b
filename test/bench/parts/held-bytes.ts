/** What a proxy is asked for its memory, and what it says. Both travel between processes. */
import { once } from 'node:events'
import { join } from 'node:path'
import type { Child } from './children.ts'

export const MEASURE = 'measure'

/** What sessions count, by what it is of. In bytes. */
export interface MemoryParts {
  requests: number
  messages: number
  /** Of both of them. */
  values: number
  prompts: number
  turns: number
  /** With what a session takes besides. */
  all: number
}

/** After a collection. */
export interface HeldBytes {
  heapBytes: number
  /** Buffers. */
  externalBytes: number
  counted: MemoryParts
}

const PATIENCE_MS = 60_000

/** Arguments of `node` for a proxy that can be asked, with as little compiled code as can be; it needs a channel for messages. */
export const PROBE_ARGS = [
  '--expose-gc',
  '--no-flush-bytecode',
  '--no-opt',
  '--no-sparkplug',
  '--import',
  join(import.meta.dirname, '../processes/memory-probe.ts'),
]

export async function heldBy({ process: child }: Child): Promise<HeldBytes> {
  child.send(MEASURE)
  const [held] = (await once(child, 'message', { signal: AbortSignal.timeout(PATIENCE_MS) })) as [HeldBytes]
  return held
}
