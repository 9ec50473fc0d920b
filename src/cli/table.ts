/** Formats rows as a table with aligned columns and an upper-case header, and values for a terminal. */
import { escapeInvisible, revealInvisible, stripStyles } from '../protocol/transcript/visible.ts'

export interface Column<Row> {
  header: string
  value: (row: Row) => string
  align?: 'right'
  /** Styles the padded cell. */
  style?: (row: Row, cell: string) => string
}

/**
 * Returns text as one line that is safe for a terminal: model output must not move the cursor, ring the bell or reverse
 * the direction of text. Truncated at `maxLength`.
 */
export function toPrintable(text: string, maxLength = Number.POSITIVE_INFINITY): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression matches control characters
  const clean = revealInvisible(stripStyles(text).replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ')).trim()
  return clean.length > maxLength ? `${clean.slice(0, maxLength - 1)}…` : clean
}

/** Formats a value as JSON that is safe for a terminal: `JSON.stringify` does not escape C1 control characters. */
export function formatJson(value: unknown, indent?: number): string {
  return escapeInvisible(JSON.stringify(value, undefined, indent))
}

/** Formats a number without binary rounding errors: 3.32 instead of 3.3200000000000003. */
export function formatNumber(value: number): string {
  return String(Number(value.toPrecision(12)))
}

/** Returns a header line and one line per row, without trailing white space. */
export function renderTable<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  const lines = [columns.map(({ header }) => header.toUpperCase())]
  for (const row of rows) lines.push(columns.map(({ value }) => value(row)))
  const widths = columns.map((_, index) => Math.max(...lines.map((cells) => cells[index]!.length)))
  return lines.map((cells, line) => renderLine(columns, cells, widths, rows[line - 1])).join('\n')
}

function renderLine<Row>(
  columns: readonly Column<Row>[],
  cells: readonly string[],
  widths: readonly number[],
  row: Row | undefined,
): string {
  const line = cells.map((cell, index) => {
    const { align, style } = columns[index]!
    const padded = align === 'right' ? cell.padStart(widths[index]!) : cell.padEnd(widths[index]!)
    return row !== undefined && style ? style(row, padded) : padded
  })
  return line.join('  ').trimEnd()
}
