/** Rows for people to read: columns side by side, the header in capitals. */

export interface Column<Row> {
  header: string
  value: (row: Row) => string
  align?: 'right'
  /** Dresses the cell once it has its width. */
  style?: (row: Row, cell: string) => string
}

/** Text that may stand in a terminal: model output must not move the cursor or ring the bell. Cut at `maxLength`. */
export function printable(text: string, maxLength = Number.POSITIVE_INFINITY): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must go
  const clean = text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').trim()
  return clean.length > maxLength ? `${clean.slice(0, maxLength - 1)}…` : clean
}

/** A number without the last digits of its binary rounding: 3.32 instead of 3.3200000000000003. */
export function formatNumber(value: number): string {
  return String(Number(value.toPrecision(12)))
}

/** One line per row under a line of headers; no trailing white space. */
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
