/** Consumers of a store without a database: the simplest implementation of `src/proxy/store/port/consumers.ts`. */
import {
  type AvailableQuery,
  type AvailableSession,
  type Consumer,
  type ConsumerCounts,
  type ConsumerSession,
  type GroupMember,
  type GroupQuery,
  type GroupsPage,
  type LeaseChange,
  type NewLease,
  noConsumer,
} from '../../src/proxy/store/port/consumers.ts'
import type { SessionRecord } from '../../src/proxy/store/port/turn-store.ts'

interface Entry {
  life: { readonly id: number }
  session: SessionRecord
}

interface Given {
  leaseId: string
  /** The end of the lease; null: acknowledged. */
  untilMs: number | null
  deliveries: number
  group?: string
}

export class MemoryConsumers {
  readonly #consumers = new Map<string, { consumer: Consumer; given: Map<number, Given> }>()

  create(consumer: Consumer): { created: boolean; consumer: Consumer } {
    const existing = this.get(consumer.name)
    if (existing) return { created: false, consumer: existing }
    this.#consumers.set(consumer.name, { consumer: structuredClone(consumer), given: new Map() })
    return { created: true, consumer }
  }

  get(name: string): Consumer | undefined {
    const consumer = this.#consumers.get(name)?.consumer
    return consumer && structuredClone(consumer)
  }

  list(idPrefix: string): Consumer[] {
    const all = [...this.#consumers.values()].map(({ consumer }) => structuredClone(consumer))
    const found = all.filter((consumer) => consumer.idPrefix.startsWith(idPrefix))
    return found.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  delete(name: string): boolean {
    return this.#consumers.delete(name)
  }

  available(entries: readonly Entry[], query: AvailableQuery): AvailableSession[] {
    const known = this.#consumers.get(query.consumer)
    if (known === undefined) return []
    const isBehind = ({ session, life }: Entry) =>
      session.endedAtMs! > query.after.endedAtMs ||
      (session.endedAtMs === query.after.endedAtMs && life.id > query.after.tree)
    return entries
      .filter((entry) => concerns(known.consumer, entry) && isFree(known.given.get(entry.life.id), query))
      .filter(isBehind)
      .filter(({ session }) => !query.rewarded || session.reward !== null)
      .filter(({ life }) => !query.ungrouped || known.given.get(life.id)?.group === undefined)
      .sort((a, b) => a.session.endedAtMs! - b.session.endedAtMs! || a.life.id - b.life.id)
      .slice(0, query.limit)
      .map(({ session, life }) => ({
        key: { row: life.id, tree: life.id },
        session: structuredClone(session),
        deliveries: deliveriesOf(known.given.get(life.id), query.leaseId),
      }))
  }

  count(entries: readonly Entry[], name: string, nowMs: number): ConsumerCounts | undefined {
    const known = this.#consumers.get(name)
    if (known === undefined) return undefined
    const given = [...known.given.values()]
    const query = { consumer: name, leaseId: '', after: { endedAtMs: -1, tree: 0 }, limit: 1e9, nowMs }
    return {
      available: this.available(entries, query).length,
      leased: given.filter(({ untilMs }) => untilMs !== null && untilMs > nowMs).length,
      acknowledged: given.filter(({ untilMs }) => untilMs === null).length,
      discarded: given.filter(({ untilMs, leaseId }) => untilMs === null && leaseId === '').length,
    }
  }

  lease(entries: readonly Entry[], { consumer, leaseId, units, leaseMs, nowMs }: NewLease): number[] {
    const { given } = this.#known(consumer)
    const completed = new Set(entries.filter(isCompleted).map(({ life }) => life.id))
    const isOurs = ({ tree }: { tree: number }) =>
      completed.has(tree) && isFree(given.get(tree), { leaseId, nowMs })
    const trees = units.filter((unit) => unit.every(isOurs)).flatMap((unit) => unit.map(({ tree }) => tree))
    for (const tree of trees) {
      const deliveries = deliveriesOf(given.get(tree), leaseId)
      given.set(tree, { ...given.get(tree), leaseId, untilMs: nowMs + leaseMs, deliveries })
    }
    return trees
  }

  change(entries: readonly Entry[], change: LeaseChange): string[] {
    const { given } = this.#known(change.consumer)
    const { leaseId, sessionIds, to, leaseMs, nowMs } = change
    const changed: string[] = []
    for (const { session, life } of entries) {
      const held = given.get(life.id)
      if (held === undefined || held.leaseId === '' || (leaseId !== null && held.leaseId !== leaseId))
        continue
      if (sessionIds?.includes(session.sessionId) === false) continue
      if (to !== 'acknowledged' && held.untilMs === null) continue
      held.untilMs = { acknowledged: null, released: nowMs, extended: nowMs + leaseMs }[to]
      changed.push(session.sessionId)
    }
    return changed
  }

  given(entry: Entry): ConsumerSession[] {
    const named = [...this.#consumers].toSorted(([a], [b]) => (a < b ? -1 : 1))
    return named.flatMap(([consumer, { given }]) => {
      const held = given.get(entry.life.id)
      if (held === undefined) return []
      const { leaseId, untilMs: leasedUntilMs, deliveries } = held
      return [{ consumer, leaseId, leasedUntilMs, deliveries }]
    })
  }

  put(entry: Entry, added: readonly ConsumerSession[]): void {
    for (const { consumer, leaseId, leasedUntilMs: untilMs, deliveries } of added) {
      const given = this.#consumers.get(consumer)?.given
      const held = given?.get(entry.life.id)
      if (held === undefined) given?.set(entry.life.id, { leaseId, untilMs, deliveries })
      else if (untilMs === null && held.untilMs !== null) Object.assign(held, { leaseId, untilMs })
    }
  }

  group(entries: readonly Entry[], name: string, members: readonly GroupMember[]): void {
    const { given } = this.#known(name)
    for (const { key, group } of members) {
      const entry = entries.find(({ life }) => life.id === key.tree)
      if (entry === undefined) continue
      const held = given.get(key.tree) ?? { leaseId: '', untilMs: entry.session.endedAtMs, deliveries: 0 }
      given.set(key.tree, { ...held, group })
    }
  }

  findGroups(entries: readonly Entry[], query: GroupQuery): GroupsPage {
    const { consumer, leaseId, size, limit, except, timeoutMs, nowMs } = query
    const given = this.#consumers.get(consumer)?.given
    const every = { ...{ consumer, leaseId, nowMs, limit: 1e9, rewarded: false, ungrouped: false } }
    const free = this.available(entries, { ...every, after: { endedAtMs: -1, tree: 0 } })
    const groups = new Map<string, AvailableSession[]>()
    const complete: AvailableSession[][] = []
    for (const found of free) {
      const group = given?.get(found.key.tree)?.group
      if (group === undefined || except.includes(found.key.tree)) continue
      const members = [...(groups.get(group) ?? []), found]
      if (members.length === size) complete.push(members)
      groups.set(group, members.length === size ? [] : members)
    }
    const isStale = ({ key }: AvailableSession) => given!.get(key.tree)!.untilMs! <= nowMs - timeoutMs
    const stale = [...groups].filter(([, members]) => members.length > 0 && members.every(isStale))
    return { units: complete.slice(0, limit), stale: stale.map(([group]) => group) }
  }

  discard(name: string, groups: readonly string[], nowMs: number): number {
    const { given } = this.#known(name)
    const isStale = ({ group, untilMs }: Given) =>
      group !== undefined && groups.includes(group) && untilMs !== null && untilMs <= nowMs
    const discarded = [...given.values()].filter(isStale)
    for (const held of discarded) Object.assign(held, { leaseId: '', untilMs: null })
    return discarded.length
  }

  /** Returns whether a sweep must keep the entry. */
  holds(entry: Entry, nowMs: number): boolean {
    return [...this.#consumers.values()].some(({ consumer, given }) => {
      const isAcknowledged = given.get(entry.life.id)?.untilMs === null
      return (
        concerns(consumer, entry) && !isAcknowledged && entry.session.endedAtMs! + consumer.holdMs > nowMs
      )
    })
  }

  #known(name: string) {
    const known = this.#consumers.get(name)
    if (known === undefined) throw noConsumer(name)
    return known
  }
}

function deliveriesOf(given: Given | undefined, leaseId: string): number {
  if (given === undefined) return 1
  return given.deliveries + (given.leaseId === leaseId ? 0 : 1)
}

function isCompleted({ session }: Entry): boolean {
  return session.status === 'completed'
}

function concerns({ idPrefix, sinceMs }: Consumer, entry: Entry): boolean {
  const { sessionId, endedAtMs } = entry.session
  return isCompleted(entry) && endedAtMs! >= sinceMs && sessionId.startsWith(idPrefix)
}

function isFree(given: Given | undefined, { leaseId, nowMs }: { leaseId: string; nowMs: number }): boolean {
  if (given === undefined) return true
  return given.untilMs !== null && (given.untilMs <= nowMs || given.leaseId === leaseId)
}
