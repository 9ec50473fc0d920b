/** The columns of a table of CPU time by threads. */
import { formatFigure } from './table.ts'

/** Threads with a separate column. The kernel stores fifteen characters of a name. */
const THREADS: Readonly<Record<string, string>> = {
  MainThread: 'main',
  'store-writer': 'store',
  prompts: 'Python',
  'libuv-worker': 'tokenizer and files',
  V8Worker: "V8's helpers",
}

export const THREAD_TITLES: readonly string[] = [...Object.values(THREADS), 'others']

/**
 * Formats the columns.
 * @param figures by thread name
 */
export function formatThreadFigures(figures: Readonly<Record<string, number>>): string[] {
  const named = Object.keys(THREADS).map((name) => figures[name] ?? Number.NaN)
  const others = Object.entries(figures).filter(([name]) => !(name in THREADS))
  return [...named, others.reduce((sum, [, value]) => sum + value, 0)].map(formatFigure)
}
