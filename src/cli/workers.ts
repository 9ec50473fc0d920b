import type { Static } from 'typebox'
import type { OperatorConfig } from '../proxy/config/options/operator.ts'
import { type Worker, Workers } from '../proxy/http/operator/workers/schemas.ts'
import { OperatorClient } from './proxy-client.ts'
import { type Column, formatJson, renderTable, toPrintable } from './table.ts'

const COLUMNS: readonly Column<Static<typeof Worker>>[] = [
  { header: 'name', value: (worker) => toPrintable(worker.worker_id) },
  { header: 'url', value: (worker) => toPrintable(worker.url || '-') },
  { header: 'kind', value: (worker) => toPrintable(worker.engine ?? worker.kind) },
  { header: 'state', value: describeState },
  { header: 'load', value: (worker) => `${worker.load}/${worker.max_concurrency}`, align: 'right' },
  { header: 'weights', value: (worker) => toPrintable(worker.weight_version ?? '-') },
  { header: 'models', value: (worker) => toPrintable(worker.models.join(', ') || '-') },
  { header: 'since', value: (worker) => new Date(worker.connected_since * 1_000).toISOString() },
]

/** Runs `llm-proxy workers list`. @returns the exit code */
export async function run({ json, ...address }: OperatorConfig): Promise<number> {
  const workers = await new OperatorClient(address).get('/admin/workers', Workers)
  process.stdout.write(`${json ? formatJson(workers, 2) : renderTable(COLUMNS, workers)}\n`)
  return 0
}

/** Returns `up`, `draining`, or the reason why the worker does not serve. */
function describeState({ healthy, draining, error }: Static<typeof Worker>): string {
  if (!healthy) return toPrintable(error ?? 'unavailable', 60)
  return draining ? 'draining' : 'up'
}
