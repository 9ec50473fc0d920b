/** Colours of statuses, used on a terminal unless NO_COLOR is set. */
import { styleText } from 'node:util'
import { toPrintable } from './table.ts'

const COLOURS = {
  completed: 'green',
  ok: 'green',
  warning: 'yellow',
  aborted: 'yellow',
  interrupted: 'yellow',
  failed: 'red',
  failure: 'red',
} as const

/** Returns the status in its colour. @param padded the status as displayed; default: the status itself */
export function applyColour(status: string, padded = toPrintable(status)): string {
  const colour = COLOURS[status as keyof typeof COLOURS]
  return colour === undefined ? padded : styleText(colour, padded, { stream: process.stdout })
}
