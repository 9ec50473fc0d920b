/** Creates the parts with which the nodes of one database communicate. */
import type { NodeCoordination } from '../../store/port/node-coordination.ts'
import type { CertificateFiles } from '../transport/certificate.ts'
import { Deliveries } from './deliveries.ts'
import { Forwarder } from './forwarder.ts'
import { NodeIdentity } from './node-identity.ts'
import { NodeTrust } from './node-trust.ts'
import { OtherNodes } from './other-nodes.ts'

/** The parts with which the nodes of one database communicate. */
export interface Nodes {
  /** The leases and controls in the database. */
  readonly shared: NodeCoordination
  readonly identity: NodeIdentity
  readonly deliveries: Deliveries
  readonly forwarder: Forwarder
  readonly others: OtherNodes
}

interface NodesOptions {
  /** The path that precedes all routes; it is the same at every node. */
  basePath?: string | undefined
  /** The certificate of this node. Default: it serves plain HTTP. */
  certificateFiles?: CertificateFiles | undefined
}

/**
 * Creates the parts. The caller must close `forwarder`.
 * @throws ProxyError `config_invalid` for an unusable certificate
 */
export function createNodes(shared: NodeCoordination, { basePath, certificateFiles }: NodesOptions): Nodes {
  const identity = new NodeIdentity(shared)
  const deliveries = new Deliveries(shared)
  const forwarder = new Forwarder({
    shared,
    identity,
    deliveries,
    basePath,
    trust: new NodeTrust(certificateFiles),
  })
  return { shared, identity, deliveries, forwarder, others: new OtherNodes(shared, forwarder) }
}
