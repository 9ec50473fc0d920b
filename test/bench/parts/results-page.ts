/** RESULTS.md: one generated section per row. */

/** A measured row for its section. */
export interface MeasuredRow {
  row: string
  /** The report in Markdown. */
  report: string
}

/**
 * Returns the page with the sections of these rows replaced.
 * @param context one line about commit, date and machine
 * @throws Error if the page has no section for a row
 */
export function replaceSections(page: string, rows: readonly MeasuredRow[], context: string): string {
  return rows.reduce((text, { row, report }) => {
    const begin = `<!-- bench:${row} -->\n`
    const end = `\n<!-- /bench:${row} -->`
    const from = text.indexOf(begin)
    const to = text.indexOf(end, from)
    if (from < 0 || to < 0) throw new Error(`RESULTS.md has no section bench:${row}`)
    return `${text.slice(0, from + begin.length)}${context}\n\n${report}${text.slice(to)}`
  }, page)
}
