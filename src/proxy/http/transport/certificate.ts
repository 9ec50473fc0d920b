/**
 * Reads the server's certificate at the start, and again when its files change, because certificates are renewed while
 * the server runs.
 */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createSecureContext } from 'node:tls'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'

export interface CertificateFiles {
  /** The path of a PEM file with the certificate and the intermediate certificates. */
  certPath: string
  /** The path of a PEM file with the private key. */
  keyPath: string
}

/** A certificate and its private key as PEM text. */
export interface Certificate {
  cert: string
  key: string
}

/**
 * Reads and validates a certificate and its key.
 * @throws ProxyError `config_invalid` if a file is missing or is not PEM, or if certificate and key do not match
 */
export function readCertificate({ certPath, keyPath }: CertificateFiles): Certificate {
  try {
    const certificate = { cert: readFileSync(certPath, 'utf8'), key: readFileSync(keyPath, 'utf8') }
    createSecureContext(certificate)
    return certificate
  } catch (error) {
    const { message } = error as Error
    throw new ProxyError(
      'config_invalid',
      `tls-cert and tls-key: cannot use ${certPath} and ${keyPath}: ${message}`,
    )
  }
}

interface CertificateWatchOptions {
  files: CertificateFiles
  /** The certificate in use. */
  current: Certificate
  /** Installs a new certificate. */
  onRenewed(certificate: Certificate): void
  /** Logs renewals and unusable files. Default: nothing is logged, because another watch of the files does. */
  logger?: Logger
  /** Default: 10 s. */
  intervalMs?: number | undefined
}

const INTERVAL_MS = 10_000

/**
 * Polls the files. They are small, and neither file events nor modification times reliably report that a mounted secret
 * was replaced. The two files are not replaced atomically; a pair that does not match is skipped until the next poll.
 * @returns a function that stops the polling
 */
export function watchCertificate({
  files,
  current,
  onRenewed,
  logger,
  ...options
}: CertificateWatchOptions): () => void {
  let lastError = ''
  const poll = () => {
    try {
      const certificate = readCertificate(files)
      lastError = ''
      if (certificate.cert === current.cert && certificate.key === current.key) return
      onRenewed(certificate)
      current = certificate
      if (!logger) return
      logEvent(logger, 'certificate_renewed', { valid_to: new X509Certificate(certificate.cert).validTo })
    } catch (error) {
      const { message } = error as Error
      if (logger && message !== lastError) logEvent(logger, 'certificate_unusable', { reason: message })
      lastError = message
    }
  }
  const timer = setInterval(poll, options.intervalMs ?? INTERVAL_MS).unref()
  return () => clearInterval(timer)
}
