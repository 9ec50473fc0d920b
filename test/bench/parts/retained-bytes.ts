/** The request for a proxy's memory figures, and the reply. Both are sent between processes. */
import { once } from 'node:events'
import { join } from 'node:path'
import type { Child } from './children.ts'

export const MEASURE = 'measure'

/** The bytes that sessions account for, by kind. */
export interface MemoryParts {
  requests: number
  messages: number
  /** Values of requests and messages. */
  values: number
  prompts: number
  turns: number
  /** Includes the fixed memory of a session. */
  all: number
}

/** Memory after a garbage collection. */
export interface RetainedBytes {
  heapBytes: number
  /** Memory of buffers. */
  externalBytes: number
  counted: MemoryParts
}

const TIMEOUT_MS = 60_000

/**
 * Arguments of `node` for a proxy with the memory probe and as little compiled code as possible. The process needs a
 * channel for messages.
 */
export const PROBE_ARGS = [
  '--expose-gc',
  '--no-flush-bytecode',
  '--no-opt',
  '--no-sparkplug',
  '--import',
  join(import.meta.dirname, '../processes/memory-probe.ts'),
]

export async function measureRetained({ process: child }: Child): Promise<RetainedBytes> {
  child.send(MEASURE)
  const [retained] = (await once(child, 'message', { signal: AbortSignal.timeout(TIMEOUT_MS) })) as [
    RetainedBytes,
  ]
  return retained
}
