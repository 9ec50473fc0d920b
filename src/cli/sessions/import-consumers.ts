/**
 * Imports consumers. Their acknowledgements are copied with each session, so that the trainer does not train on
 * acknowledged sessions again.
 */
import { isDeepStrictEqual } from 'node:util'
import { ProxyError } from '../../base/errors.ts'
import type { Consumer, ConsumerReader } from '../../proxy/store/port/consumers.ts'
import type { TurnStore } from '../../proxy/store/port/turn-store.ts'

export interface ConsumerImport {
  created: number
  /** Names of the consumers whose acknowledgements are imported. */
  merged: ReadonlySet<string>
  /** Names of the consumers that were deleted, or created again, at the destination after an import. */
  dropped: string[]
}

/**
 * Imports the consumers.
 * @throws ProxyError `consumer_exists` if the destination has a consumer of the same name with other settings; nothing
 *   is imported then
 */
export async function importConsumers(reader: ConsumerReader, store: TurnStore): Promise<ConsumerImport> {
  const consumers = await reader.listConsumers('')
  for (const consumer of consumers) rejectOtherSettings(consumer, await store.getConsumer(consumer.name))
  const merged = new Set<string>()
  const dropped: string[] = []
  let created = 0
  for (const consumer of consumers) {
    const known = await store.getConsumer(consumer.name)
    if (!(await isMerged(store, consumer, known))) {
      dropped.push(consumer.name)
      continue
    }
    if (known === undefined) {
      await store.createConsumer(consumer)
      created += 1
    }
    // Both consumers are recorded as imported, because the destination's may have been created before the first import.
    await store.setImported(toItem(consumer), true)
    if (known !== undefined) await store.setImported(toItem(known), true)
    merged.add(consumer.name)
  }
  return { created, merged, dropped }
}

/**
 * Returns whether the acknowledgements of a consumer are imported: unless it was imported earlier and then deleted, or
 * created again, at the destination.
 */
async function isMerged(store: TurnStore, consumer: Consumer, known: Consumer | undefined): Promise<boolean> {
  if (!(await store.wasImported(toItem(consumer)))) return true
  return known !== undefined && (await store.wasImported(toItem(known)))
}

function toItem({ name, createdAtMs }: Consumer) {
  return { kind: 'consumer', name, createdAtMs } as const
}

/** Rejects a consumer that has other settings at the destination. @throws ProxyError `consumer_exists` */
function rejectOtherSettings(consumer: Consumer, known: Consumer | undefined): void {
  const settings = ({ createdAtMs: _createdAtMs, ...rest }: Consumer) => rest
  if (known === undefined || isDeepStrictEqual(settings(known), settings(consumer))) return
  throw new ProxyError(
    'consumer_exists',
    `The destination has a consumer '${consumer.name}' with other settings: delete one of the two first`,
  )
}
