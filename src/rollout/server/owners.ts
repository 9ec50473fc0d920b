/** The port that determines which of several nodes of one database runs a rollout. */
import type { FastifyReply, FastifyRequest } from 'fastify'

/**
 * A function that forwards a request to the node that owns the rollout, and the response to the client. `body` is the
 * text of a request body that has been read already.
 * @throws ProxyError `proxy_away`
 */
type ForwardRollout = (request: FastifyRequest, reply: FastifyReply, body?: string) => Promise<FastifyReply>

export type RolloutClaim<T> = { started: T } | { forward: ForwardRollout }

export interface RolloutOwners {
  /**
   * Claims a rollout for this node, and starts or joins it here if this node owns it. Until then the end of an earlier
   * rollout of this id does not release it.
   * @returns the result of `start`, or a function that forwards requests to the owner
   */
  claim<T>(rolloutId: string, start: () => T): Promise<RolloutClaim<T>>
  /**
   * Finds the owner of a rollout.
   * @returns undefined if no other node owns it, otherwise a function that forwards requests to its owner
   */
  find(rolloutId: string): Promise<ForwardRollout | undefined>
  /** Releases a rollout of this node. Never rejects. */
  release(rolloutId: string): void
  /** Returns the rollouts of the other nodes. */
  listOthers<T>(request: FastifyRequest): Promise<T[]>
}
