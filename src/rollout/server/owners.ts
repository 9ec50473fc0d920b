/** Port: which of several nodes of one database runs a rollout. */
import type { FastifyReply, FastifyRequest } from 'fastify'

/**
 * Sends a request to the node that has the rollout, with a body that has been read, and the response to the client.
 * @throws ProxyError `proxy_away`
 */
type ForwardRollout = (request: FastifyRequest, reply: FastifyReply, body?: string) => Promise<FastifyReply>

export interface RolloutOwners {
  /** Makes a rollout this node's own. @returns undefined: it is this node's */
  claim(rolloutId: string): Promise<ForwardRollout | undefined>
  /** @returns undefined: no other node has it */
  find(rolloutId: string): Promise<ForwardRollout | undefined>
  /** Forgets a rollout of this node. Never rejects. */
  release(rolloutId: string): void
  /** Returns the rollouts of the other nodes. */
  listOthers<T>(request: FastifyRequest): Promise<T[]>
}
