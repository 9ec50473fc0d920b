/**
 * Authentication between the nodes of one database. A node signs its messages to other nodes with a secret that all
 * nodes read from the database, so that a client with the key of an agent, a run or an admin cannot impersonate a node.
 */
import { createHmac, randomBytes, randomUUID, timingSafeEqual } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { NodeCoordination } from '../../store/port/node-coordination.ts'

/** The header with the signature: version, lease of the sender, lease of the receiver, message id, MAC. */
export const NODE_HEADER = 'x-llm-proxy-node'

/** The control that stores the list of secrets, of which the first one signs and all of them verify. */
export const NODE_SECRETS = 'node_secrets'

const VERSION = '1'
const SECRET_BYTES = 32
const HEADER_FORMAT = /^1 (\d{1,15}) (\d{1,15}) ([\w-]{1,64}) ([\w-]{43})$/

/** The sender and the id of a request that another node has signed. */
export interface NodeMessage {
  /** The lease of the node that sent it. */
  readonly from: number
  /** Unique for each message. */
  readonly id: string
}

/** The id and the signature header of a message to another node. */
export interface SignedMessage {
  readonly id: string
  readonly header: string
}

/** The identity of this node, which signs and verifies messages. */
export class NodeIdentity {
  readonly #shared: NodeCoordination
  #secrets: readonly string[] = []

  constructor(shared: NodeCoordination) {
    this.#shared = shared
  }

  /** The secrets in use, the signing one first; empty until the controls have been read. */
  get secrets(): readonly string[] {
    return this.#secrets
  }

  /** Applies the value of the control {@link NODE_SECRETS}. A malformed value is ignored. */
  setSecrets(value: unknown): void {
    const isList = Array.isArray(value) && value.length > 0
    if (isList && value.every((secret) => typeof secret === 'string' && secret !== '')) this.#secrets = value
  }

  /**
   * Signs a message.
   * @param to the lease of the receiver
   * @returns undefined while this node has no lease or no secret
   */
  sign(to: number): SignedMessage | undefined {
    const { self } = this.#shared
    const [secret] = this.#secrets
    if (self === undefined || secret === undefined) return undefined
    const id = randomUUID()
    const fields = [VERSION, self.id, to, id].join(' ')
    return { id, header: `${fields} ${computeMac(secret, fields)}` }
  }

  /** Verifies the signature of a request for this node. @returns undefined for a request without a valid one */
  verify({ headers }: Pick<FastifyRequest, 'headers'>): NodeMessage | undefined {
    const header = headers[NODE_HEADER]
    const match = typeof header === 'string' ? HEADER_FORMAT.exec(header) : null
    if (match === null) return undefined
    const [, from, to, id, mac] = match as unknown as [string, string, string, string, string]
    if (Number(to) !== this.#shared.self?.id) return undefined
    const fields = [VERSION, from, to, id].join(' ')
    const isValid = this.#secrets.some((secret) =>
      timingSafeEqual(Buffer.from(computeMac(secret, fields)), Buffer.from(mac)),
    )
    return isValid ? { from: Number(from), id } : undefined
  }
}

export function createNodeSecret(): string {
  return randomBytes(SECRET_BYTES).toString('base64url')
}

function computeMac(secret: string, fields: string): string {
  return createHmac('sha256', secret).update(`llm-proxy node\n${fields}`).digest('base64url')
}
