/**
 * Returns the origin-form of a request target (RFC 9112, section 3.2): the path and query of one in absolute form,
 * whose host a server of one origin ignores, and any other target unchanged.
 */
export function toOriginForm(target: string): string {
  const match = /^https?:\/\/[^/?#]*([^#]*)/i.exec(target)
  if (match === null) return target
  const [, rest = ''] = match
  return rest.startsWith('/') ? rest : `/${rest}`
}
