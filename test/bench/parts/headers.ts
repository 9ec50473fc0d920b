/** Returns the headers of a request; some proxies identify the session by a header. */
export function createHeaders(
  { headers }: { headers?: Record<string, string> },
  session: string,
): Record<string, string> {
  const own = Object.entries(headers ?? {}).map(([name, value]) => [
    name,
    value.replace('{session}', session),
  ])
  return { 'content-type': 'application/json', ...Object.fromEntries(own) }
}
