import type { NodeCoordination, NodeStatus } from '../../src/proxy/store/port/node-coordination.ts'

interface FakeNodeCoordination extends NodeCoordination {
  /** Ends the lease of another node. */
  end(id: number): void
}

/**
 * Creates the part of node coordination that nodes need to reach each other: this node's lease, and the ends of the
 * others'.
 */
export function createFakeNodeCoordination({
  lease,
}: {
  lease?: number | undefined
} = {}): FakeNodeCoordination {
  const controllers = new Map<number, AbortController>()
  const getController = (id: number) => {
    const controller = controllers.get(id) ?? new AbortController()
    controllers.set(id, controller)
    return controller
  }
  const self: NodeStatus | undefined =
    lease === undefined
      ? undefined
      : { id: lease, name: 'fake', url: undefined, isDraining: false, seen: 0, isDrained: false }
  const fake: Partial<FakeNodeCoordination> = {
    self,
    proxies: self ? [self] : [],
    getLossSignal: (id) => getController(id).signal,
    end: (id) => getController(id).abort(),
  }
  return fake as FakeNodeCoordination
}
