/** The value of `--db`: a file or a PostgreSQL URL. */
import { ProxyError } from '../../../base/errors.ts'

/**
 * Returns whether `--db` names a PostgreSQL database instead of a file.
 * @throws ProxyError `start_failed` for a database of another kind
 */
export function isPostgresUrl(db: string): boolean {
  const [, scheme] = /^([a-z][a-z0-9+.-]+):\/\//i.exec(db) ?? []
  if (scheme === undefined) return false
  if (/^postgres(ql)?$/i.test(scheme)) return true
  throw new ProxyError(
    'start_failed',
    `--db: unsupported scheme "${scheme}": use a file path or postgres://…`,
  )
}

/** Returns the name for display, without the password. */
export function toDatabaseName(db: string): string {
  return isPostgresUrl(db) ? withoutPassword(db) : db
}

/** Returns the URL without its password, for messages of the form "the database URL …". */
export function withoutPassword(url: string): string {
  if (!URL.canParse(url)) return 'that --db names'
  const parsed = new URL(url)
  // A password with an unencoded slash, whose first part was parsed as the port.
  if (parsed.pathname.includes('@')) return 'that --db names'
  return `${parsed.protocol}//${parsed.username}${parsed.username && '@'}${parsed.host}${parsed.pathname}`
}
