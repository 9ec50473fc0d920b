/** Renders the difference of two texts, or a patch, as removed, added and unchanged lines. */
import { diffLines as compare } from 'diff'

export interface DiffLine {
  /** `place` lines belong to neither text: they show the position of the next lines, or the number of omitted ones. */
  kind: 'same' | 'added' | 'removed' | 'place'
  text: string
}

/**
 * The maximum number of edits of a diff, because its cost grows with their square. Beyond it, all old lines are shown
 * as removed and all new ones as added.
 */
const MAX_EDITS = 1_000

/** The number of unchanged lines shown before and after each change. */
const CONTEXT = 3

/** Returns the changes with their context. Other unchanged lines are omitted and counted. */
export function diffLines(before: string, now: string): DiffLine[] {
  const changes = compare(before, now, { maxEditLength: MAX_EDITS }) ?? [
    { value: before, removed: true, added: false },
    { value: now, removed: false, added: true },
  ]
  return changes.flatMap(({ value, added, removed }, index) => {
    const lines = splitLines(value)
    if (added || removed) return lines.map((text) => ({ kind: added ? 'added' : 'removed', text }) as const)
    return selectNearChanges(lines, index > 0, index < changes.length - 1)
  })
}

function splitLines(text: string): string[] {
  if (text === '') return []
  return (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n')
}

function selectNearChanges(lines: readonly string[], isAfter: boolean, isBefore: boolean): DiffLine[] {
  const same = (kept: readonly string[]) => kept.map((text) => ({ kind: 'same', text }) as const)
  const [head, tail] = [isAfter ? CONTEXT : 0, isBefore ? CONTEXT : 0]
  const rest = lines.length - head - tail
  if (rest <= 1) return same(lines)
  const gap: DiffLine = { kind: 'place', text: `… ${rest} lines` }
  return [...same(lines.slice(0, head)), gap, ...same(tail === 0 ? [] : lines.slice(-tail))]
}

const BEGINS_PATCH = /^(?:\*\*\* Begin Patch|diff --git |--- \S.*\n\+\+\+ )/m

/** Returns the lines of a patch in the format of git or of `apply_patch`. @returns undefined if the text has none */
export function patchLines(text: string): DiffLine[] | undefined {
  if (!BEGINS_PATCH.test(text)) return undefined
  return text.split('\n').map((line) => {
    if (/^(@@|\*\*\* |diff --git |index |--- |\+\+\+ )/.test(line)) return { kind: 'place', text: line }
    const kind = line.startsWith('+') ? 'added' : line.startsWith('-') ? 'removed' : 'same'
    return { kind, text: kind === 'same' && !line.startsWith(' ') ? line : line.slice(1) }
  })
}
