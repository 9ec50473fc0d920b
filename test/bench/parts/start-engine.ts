import { join } from 'node:path'
import type { Child, Children } from './children.ts'

export interface EngineOptions {
  /** Of each answer; without it as fast as it goes. */
  tokensPerSecond?: number | undefined
  /** A folder: takes prompts of ids, too. */
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
