import { join } from 'node:path'
import type { Child, Children } from './children.ts'

export interface EngineOptions {
  /** The rate of each completion; default: as fast as possible. */
  tokensPerSecond?: number | undefined
  /** The number of events that it writes at once to each stream; default: 1. */
  eventsPerWrite?: number | undefined
  /** The folder of a tokenizer, with which it accepts prompts of ids, too. */
  tokenizer?: string | undefined
}

export function startEngine(
  children: Children,
  { tokensPerSecond, eventsPerWrite, tokenizer }: EngineOptions = {},
): Promise<Child> {
  const script = join(import.meta.dirname, '../processes/engine-stand-in.ts')
  const pace = tokensPerSecond === undefined ? [] : ['--tokens-per-second', String(tokensPerSecond)]
  const model = tokenizer === undefined ? [] : ['--tokenizer', tokenizer]
  const coalesced = eventsPerWrite === undefined ? [] : ['--events-per-write', String(eventsPerWrite)]
  return children.start({ name: 'engine stand-in', args: [script, ...pace, ...coalesced, ...model] })
}
