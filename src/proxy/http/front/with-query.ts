/** A request's path with other parameters. @param more undefined takes one out */
export function withQuery(url: string, more: Record<string, string | undefined>): string {
  const parsed = new URL(url, 'http://front')
  for (const [name, value] of Object.entries(more)) {
    if (value === undefined) parsed.searchParams.delete(name)
    else parsed.searchParams.set(name, value)
  }
  return `${parsed.pathname}${parsed.search}`
}
