/**
 * Authentication between the nodes of one database. A node signs what it sends to another node with a secret that all
 * nodes read from the database, so a client that has the key of an agent, a run or an admin cannot pose as a node.
 */
import { createHmac, randomBytes, randomUUID, timingSafeEqual } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { NodeCoordination } from '../../store/port/node-coordination.ts'

/** The header with the signature: version, sender, receiver, message id and MAC, separated by spaces. */
export const NODE_HEADER = 'x-llm-proxy-node'

/** The name of the control that stores the secrets: a list, of which the first one signs and all of them verify. */
export const NODE_SECRETS = 'node_secrets'

const VERSION = '1'
const SECRET_BYTES = 32
const HEADER_FORMAT = /^1 (\d{1,15}) (\d{1,15}) ([\w-]{1,64}) ([\w-]{43})$/

/** A request that another node has signed. */
export interface NodeMessage {
  /** The lease of the node that sent it. */
  readonly from: number
  /** Unique for each message. */
  readonly id: string
}

export interface SignedMessage {
  readonly id: string
  readonly header: string
}

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

  /** Applies the value of the control {@link NODE_SECRETS}. A malformed value changes nothing. */
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

  /** Returns the message of a request that a node has signed for this node, or undefined. */
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
