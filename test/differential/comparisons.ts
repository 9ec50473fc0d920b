/**
 * What the differentials compared last: the prompts of each template family (`run.ts --write`) and of each prompt encoder
 * (`encoders.ts --write`), none of which differed. The table of models in docs/token-mode.md is made of it.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Comparison {
  /** The output parser that is chosen for the template or the encoder. */
  parser: string
  /** The number of prompts. */
  prompts: number
}

export interface Comparisons {
  /** By the names of `families.ts`. */
  templates: Record<string, Comparison>
  /** By file name. */
  encoders: Record<string, Comparison>
}

const FILE = join(import.meta.dirname, 'comparisons.json')

export function readComparisons(): Comparisons {
  return JSON.parse(readFileSync(FILE, 'utf8')) as Comparisons
}

/** Replaces the entries of these families or encoders. */
export function writeComparisons(
  kind: keyof Comparisons,
  compared: Readonly<Record<string, Comparison>>,
): void {
  const all = readComparisons()
  all[kind] = { ...all[kind], ...compared }
  writeFileSync(FILE, `${JSON.stringify(all, null, 2)}\n`)
}
