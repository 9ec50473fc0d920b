import { readFileSync } from 'node:fs'
import { createSecureContext, getCACertificates } from 'node:tls'
import { ProxyError } from '../../base/errors.ts'

/**
 * Whom a client trusts that is told a file of authorities: these, and those that Node.js trusts anyway.
 * @returns nothing without a file: what Node.js trusts. @throws ProxyError `config_invalid`
 */
export function trustedAuthorities(path: string | undefined): { ca?: string[] } {
  if (path === undefined) return {}
  try {
    const ca = [...getCACertificates('default'), readFileSync(path, 'utf8')]
    createSecureContext({ ca })
    return { ca }
  } catch (error) {
    throw new ProxyError('config_invalid', `tls-ca: cannot use ${path}: ${(error as Error).message}`)
  }
}
