/**
 * Decides which certificates of other nodes are trusted. A node trusts its own certificate, because nodes may share a
 * self-signed one, and the authorities of Node.js. It also trusts its own certificates of the past, because nodes read a
 * renewed certificate at different times.
 */
import { X509Certificate } from 'node:crypto'
import { checkServerIdentity, createSecureContext, getCACertificates, type PeerCertificate } from 'node:tls'
import { buildConnector } from 'undici'
import { type CertificateFiles, readCertificate, watchCertificate } from '../transport/certificate.ts'

const CONNECT_TIMEOUT_MS = 5_000

/** The certificates of this node that are trusted: the current and the previous one. */
const KEPT = 2

/** Connects to the other nodes, and follows the renewals of this node's certificate. */
export class NodeTrust {
  /** Opens connections for undici. */
  readonly connect: buildConnector.connector
  readonly close: () => void
  #pems: readonly string[] = []
  #connector: buildConnector.connector

  /**
   * @param files the certificate of this node; undefined: it serves plain HTTP
   * @param intervalMs the interval at which the files are read
   * @throws ProxyError `config_invalid` for unusable files
   */
  constructor(files?: CertificateFiles | undefined, intervalMs?: number) {
    this.#connector = buildConnector({ timeout: CONNECT_TIMEOUT_MS })
    this.connect = (options, callback) => this.#connector(options, callback)
    this.close = files ? this.#watch(files, intervalMs) : () => {}
  }

  #watch(files: CertificateFiles, intervalMs: number | undefined): () => void {
    const current = readCertificate(files)
    this.#add(current.cert)
    return watchCertificate({ files, current, onRenewed: ({ cert }) => this.#add(cert), intervalMs })
  }

  #add(pem: string): void {
    const pems = [...this.#pems, pem].slice(-KEPT)
    this.#connector = buildConnector({
      timeout: CONNECT_TIMEOUT_MS,
      secureContext: createSecureContext({
        ca: [...getCACertificates('default'), ...pems],
        allowPartialTrustChain: true,
      }),
      checkServerIdentity: createIdentityCheck(pems),
    })
    this.#pems = pems
  }
}

/**
 * Creates a function that returns an error if a certificate with a valid chain belongs to another service. It accepts
 * the certificates of this node and those of its private authority for any host; any other certificate needs the name of
 * the host, or a name of this node, because nodes often share a certificate and are addressed by IP.
 */
function createIdentityCheck(pems: readonly string[]): typeof checkServerIdentity {
  const forAnyHost = new Set<string>()
  const ownNames = new Set<string>()
  for (const [index, certificate] of pems.flatMap((pem) => [...parseCertificates(pem).entries()])) {
    const { subject, issuer, subjectAltName, raw } = certificate
    if (index === 0) for (const name of splitNames(subjectAltName)) ownNames.add(name)
    // Intermediate certificates of public authorities sign for everybody.
    if (index === 0 || subject === issuer) forAnyHost.add(raw.toString('base64'))
  }
  return (host, certificate) => {
    if (listChain(certificate).some(({ raw }) => forAnyHost.has(raw.toString('base64')))) return undefined
    if (splitNames(certificate.subjectaltname).some((name) => ownNames.has(name))) return undefined
    return checkServerIdentity(host, certificate)
  }
}

function parseCertificates(pem: string): X509Certificate[] {
  const texts = pem.match(/-----BEGIN [^-]*CERTIFICATE-----.*?-----END [^-]*-----/gs) ?? []
  return texts.map((text) => new X509Certificate(text))
}

function splitNames(names = ''): string[] {
  return names.split(', ').filter((name) => name !== '')
}

/** Returns a certificate and its issuers. The issuer of a root is itself. */
function listChain(certificate: PeerCertificate): PeerCertificate[] {
  const chain = new Set<PeerCertificate>()
  let next: PeerCertificate | undefined = certificate
  while (next?.raw && !chain.has(next)) {
    chain.add(next)
    next = (next as { issuerCertificate?: PeerCertificate | undefined }).issuerCertificate
  }
  return [...chain]
}
