/** RESULTS.md: one generated section per row. */

/**
 * Returns the page with the sections of these rows replaced.
 * @param context one line about commit, date and machine
 * @throws Error if the page has no section for a row
 */
export function replaceSections(
  page: string,
  rows: readonly { row: string; report: string }[],
  context: string,
): string {
  return rows.reduce((text, { row, report }) => {
    const startTag = `<!-- bench:${row} -->\n`
    const endTag = `\n<!-- /bench:${row} -->`
    const from = text.indexOf(startTag)
    const to = text.indexOf(endTag, from)
    if (from < 0 || to < 0) throw new Error(`RESULTS.md has no section bench:${row}`)
    return `${text.slice(0, from + startTag.length)}${context}\n\n${report}${text.slice(to)}`
  }, page)
}
