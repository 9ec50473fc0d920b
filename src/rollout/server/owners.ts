/** The port that determines which of several nodes of one database runs a rollout. */
import type { FastifyReply, FastifyRequest } from 'fastify'

/**
 * Forwards a request, whose body has been read, to the owner of the rollout, and the response to the client.
 * @throws ProxyError `proxy_away`
 */
type ForwardRollout = (request: FastifyRequest, reply: FastifyReply, body?: string) => Promise<FastifyReply>

export interface RolloutOwners {
  /** Claims a rollout for this node. @returns undefined if this node owns it */
  claim(rolloutId: string): Promise<ForwardRollout | undefined>
  /** Finds the owner of a rollout. @returns undefined if no other node owns it */
  find(rolloutId: string): Promise<ForwardRollout | undefined>
  /** Releases a rollout of this node. Never rejects. */
  release(rolloutId: string): void
  /** Returns the rollouts of the other nodes. */
  listOthers<T>(request: FastifyRequest): Promise<T[]>
}
