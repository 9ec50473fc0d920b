import type { MakeWork } from './measure.ts'

/** A function that reads what others have written, and what would hurt it. */
export interface Subject {
  name: string
  /** The files whose work this is, from the root of the repository; `*` for all of a folder. */
  covers: readonly string[]
  /** By what is hurtful about them: an input of about `n` characters, bytes or elements. */
  cases: Readonly<Record<string, Case>>
  /** Of the smallest input; the largest is 32 times that. Default: 8,000. */
  n?: number
}

export type Case = MakeWork

/** What hurts readers of JSON and of markup: repeated, it is text of any length. */
export const UNITS: Readonly<Record<string, string>> = {
  escapes: '\\"',
  backslashes: '\\',
  quotes: '"',
  newlines: '\n',
  'carriage returns': '\r',
  spaces: ' \t',
  'empty objects': '{}',
  'open lists': '[',
  'open objects': '{"a":',
  'open tags': '<',
  'surrogate pairs': '🙂',
}

/** The text of one unit, about `n` characters long. */
export function repeated(unit: string, n: number): string {
  return unit.repeat(Math.max(1, Math.floor(n / unit.length)))
}

/** Text of each unit as a string of JSON would hold it, and what is made of it. */
export function ofUnits(
  work: (text: string) => () => unknown,
  units: Readonly<Record<string, string>> = UNITS,
): Record<string, Case> {
  return Object.fromEntries(
    Object.entries(units).map(([name, unit]) => [name, (n: number) => work(repeated(unit, n))]),
  )
}

/** A list with one of its elements after the other, each nested 200 deep. */
export function deepValues(n: number): unknown[] {
  const deep = (): unknown => {
    let value: unknown = 1
    for (let level = 0; level < 100; level += 1) value = [{ a: value }]
    return value
  }
  return Array.from({ length: Math.max(1, Math.floor(n / 200)) }, deep)
}

/** An object with about so many members. From 1,020 on V8 keeps them in another way, which is a step: begin above it. */
export function wideObject(n: number): Record<string, unknown> {
  return Object.fromEntries(Array.from({ length: n }, (_, at) => [`m${at}`, {}]))
}

export function times<T>(n: number, make: (at: number) => T): T[] {
  return Array.from({ length: n }, (_, at) => make(at))
}
