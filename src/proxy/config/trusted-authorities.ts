import { readFileSync } from 'node:fs'
import { createSecureContext, getCACertificates } from 'node:tls'
import { ProxyError } from '../../base/errors.ts'

/**
 * Returns the certificate authorities that a client trusts: those of a configured file, and Node.js' defaults.
 * @returns an empty object without a file, for Node.js' defaults
 * @throws ProxyError `config_invalid`
 */
export function readTrustedAuthorities(path: string | undefined): { ca?: string[] } {
  if (path === undefined) return {}
  try {
    const ca = [...getCACertificates('default'), readFileSync(path, 'utf8')]
    createSecureContext({ ca })
    return { ca }
  } catch (error) {
    throw new ProxyError('config_invalid', `tls-ca: cannot use ${path}: ${(error as Error).message}`)
  }
}
