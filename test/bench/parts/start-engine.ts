import { join } from 'node:path'
import type { Child, Children } from './children.ts'

interface EngineOptions {
  /** The rate of each completion; default: as fast as possible. */
  tokensPerSecond?: number | undefined
  /** The number of events that the engine writes at once to each stream; default: 1. */
  eventsPerWrite?: number | undefined
  /** The folder of a tokenizer: the engine then also accepts prompts of ids. */
  tokenizer?: string | undefined
}

export function startEngine(
  children: Children,
  { tokensPerSecond, eventsPerWrite, tokenizer }: EngineOptions = {},
): Promise<Child> {
  const script = join(import.meta.dirname, '../processes/fake-engine.ts')
  const rateArgs = tokensPerSecond === undefined ? [] : ['--tokens-per-second', String(tokensPerSecond)]
  const tokenizerArgs = tokenizer === undefined ? [] : ['--tokenizer', tokenizer]
  const writeArgs = eventsPerWrite === undefined ? [] : ['--events-per-write', String(eventsPerWrite)]
  return children.start({ name: 'fake engine', args: [script, ...rateArgs, ...writeArgs, ...tokenizerArgs] })
}
