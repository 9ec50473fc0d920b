/** A certificate authority for one test, and certificates for this machine that it issued. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { generate } from 'selfsigned'
import type { Test } from 'tap'

export interface CertificateFolder {
  certPath: string
  keyPath: string
  /** The authority's certificate. */
  caPath: string
  /**
   * Replaces the certificate, the key, or both.
   * @returns its serial number
   */
  renew(half?: 'cert' | 'key'): Promise<void>
}

const EC = { keyType: 'ec', algorithm: 'sha256' } as const

export async function createCertificateFolder(t: Test): Promise<CertificateFolder> {
  const folder = t.testdir({})
  const [certPath, keyPath, caPath] = ['cert.pem', 'key.pem', 'ca.pem'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ]
  const authority = await generate([{ name: 'commonName', value: 'test authority' }], {
    ...EC,
    extensions: [
      { name: 'basicConstraints', cA: true },
      { name: 'keyUsage', keyCertSign: true },
    ],
  })
  writeFileSync(caPath, authority.cert)
  const renew = async (half?: 'cert' | 'key') => {
    const made = await generate([{ name: 'commonName', value: 'llm-proxy' }], {
      ...EC,
      ca: { key: authority.private, cert: authority.cert },
      extensions: [{ name: 'subjectAltName', altNames: [{ type: 7, ip: '127.0.0.1' }] }],
    })
    if (half !== 'key') writeFileSync(certPath, made.cert)
    if (half !== 'cert') writeFileSync(keyPath, made.private)
  }
  await renew()
  return { certPath, keyPath, caPath, renew }
}
