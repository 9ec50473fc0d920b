import type { NodeCoordination, NodeStatus } from '../../src/proxy/store/port/node-coordination.ts'

export interface FakeSharedRecord extends NodeCoordination {
  /** Ends the lease of another node. */
  end(id: number): void
}

/**
 * Creates the part of a shared record that nodes need to reach each other: this node's lease, and the ends of the
 * others'.
 */
export function fakeSharedRecord({ lease }: { lease?: number | undefined } = {}): FakeSharedRecord {
  const gone = new Map<number, AbortController>()
  const getGone = (id: number) => {
    const controller = gone.get(id) ?? new AbortController()
    gone.set(id, controller)
    return controller
  }
  const self: NodeStatus | undefined =
    lease === undefined
      ? undefined
      : { id: lease, name: 'fake', url: undefined, isDraining: false, seen: 0, isDrained: false }
  const fake: Partial<FakeSharedRecord> = {
    self,
    proxies: self ? [self] : [],
    getLossSignal: (id) => getGone(id).signal,
    end: (id) => getGone(id).abort(),
  }
  return fake as FakeSharedRecord
}
