import { join } from 'node:path'
import type { Child, Children } from './children.ts'

export interface EngineOptions {
  /** The rate of each completion; default: as fast as possible. */
  tokensPerSecond?: number | undefined
  /** The folder of a tokenizer, with which it accepts prompts of ids, too. */
  tokenizer?: string | undefined
}

export function startEngine(
  children: Children,
  { tokensPerSecond, tokenizer }: EngineOptions = {},
): Promise<Child> {
  const script = join(import.meta.dirname, '../processes/engine-stand-in.ts')
  const pace = tokensPerSecond === undefined ? [] : ['--tokens-per-second', String(tokensPerSecond)]
  const model = tokenizer === undefined ? [] : ['--tokenizer', tokenizer]
  return children.start({ name: 'engine stand-in', args: [script, ...pace, ...model] })
}
