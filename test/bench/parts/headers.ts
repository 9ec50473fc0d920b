/** @returns what a call is sent with; some proxies know the session by a header */
export function headersOf(
  { headers }: { headers?: Record<string, string> },
  session: string,
): Record<string, string> {
  const own = Object.entries(headers ?? {}).map(([name, value]) => [
    name,
    value.replace('{session}', session),
  ])
  return { 'content-type': 'application/json', ...Object.fromEntries(own) }
}
