/**
 * Counts of the last comparisons: the prompts of each template family (`run.ts --write`) and of each prompt encoder
 * (`encoders.ts --write`), none of which differed. The table of models in docs/token-mode.md is generated from them.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** The prompts of a template family. */
export interface Comparison {
  /** The output parser that the proxy chooses for the template. */
  parser: string
  conversations: number
  /** The number of complete prompts. */
  prompts: number
}

/** The prompts of a prompt encoder in one mode. */
export interface EncoderCounts {
  conversations: number
  /** The number of complete prompts. */
  prompts: number
  equal: number
  rejectedByBoth: number
  /** The number of turns that continue an earlier one. */
  continued: number
  /** The number of continuing turns that extend its ids. */
  extended: number
  /** Turns for which the encoder rewrites earlier text: it drops reasoning, or moves the tools. */
  rewritten: number
  /** Completions in the encoder's markup that the output parser parses to the same message. */
  read: number
}

export interface EncoderComparison {
  /** The output parser that the proxy chooses for the encoder. */
  parser: string
  modes: Record<string, EncoderCounts>
}

export interface Comparisons {
  /** By the names of `families.ts`. */
  templates: Record<string, Comparison>
  /** By the names of `encoders.ts`. */
  encoders: Record<string, EncoderComparison>
}

const FILE = join(import.meta.dirname, 'comparisons.json')

export function readComparisons(): Comparisons {
  return JSON.parse(readFileSync(FILE, 'utf8')) as Comparisons
}

/** Replaces the entries of these families or encoders. */
export function writeComparisons({ templates, encoders }: Partial<Comparisons>): void {
  const before = readComparisons()
  const all: Comparisons = {
    templates: { ...before.templates, ...templates },
    encoders: sortByName({ ...before.encoders, ...encoders }),
  }
  writeFileSync(FILE, `${JSON.stringify(all, null, 2)}\n`)
}

function sortByName<Value>(record: Readonly<Record<string, Value>>): Record<string, Value> {
  const { compare } = new Intl.Collator('en', { numeric: true })
  return Object.fromEntries(Object.entries(record).toSorted(([one], [other]) => compare(one, other)))
}
