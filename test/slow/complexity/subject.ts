import type { WorkFactory } from './measure.ts'

/** A function that reads external input, with adversarial inputs. */
export interface Subject {
  name: string
  /** The files that do this work, from the root of the repository; `*` for all of a folder. */
  covers: readonly string[]
  /** Adversarial inputs by name: each has about `n` characters, bytes or elements. */
  cases: Readonly<Record<string, WorkFactory>>
  /** The smallest input; the largest is 32 times as large. Default: 8,000. */
  n?: number
}

/** Adversarial text for readers of JSON and of markup: repeated to any length. */
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

/** Returns `unit` repeated, about `n` characters long. */
export function repeat(unit: string, n: number): string {
  return unit.repeat(Math.max(1, Math.floor(n / unit.length)))
}

/** Makes cases: text of each unit as in a JSON string, and the work on it. */
export function createUnitCases(
  work: (text: string) => () => unknown,
  units: Readonly<Record<string, string>> = UNITS,
): Record<string, WorkFactory> {
  return Object.fromEntries(
    Object.entries(units).map(([name, unit]) => [name, (n: number) => work(repeat(unit, n))]),
  )
}

/** Returns a list of elements, each nested 200 deep. */
export function createDeepValues(n: number): unknown[] {
  const deep = (): unknown => {
    let value: unknown = 1
    for (let level = 0; level < 100; level += 1) value = [{ a: value }]
    return value
  }
  return Array.from({ length: Math.max(1, Math.floor(n / 200)) }, deep)
}

/**
 * Returns an object with about `n` members. From 1,020 on V8 stores them differently, which is a step: start above it.
 */
export function createWideObject(n: number): Record<string, unknown> {
  return Object.fromEntries(Array.from({ length: n }, (_, index) => [`m${index}`, {}]))
}

export function times<T>(n: number, make: (index: number) => T): T[] {
  return Array.from({ length: n }, (_, index) => make(index))
}
