/** Which key opens which route: the table of `docs/security.md`, as the code decides it. */
import type { RouteScope } from '../../src/proxy/http/access/guard.ts'
import { type Caller, checkScope } from '../../src/proxy/http/access/scopes.ts'

/** Who calls, by the head of its column. `this session`: the one that the path names. */
export const CALLERS = {
  'no key': { is: 'stranger', hasKey: false },
  'a wrong key': { is: 'stranger', hasKey: true },
  admin: { is: 'admin' },
  worker: { is: 'worker' },
  view: { is: 'view' },
  metrics: { is: 'metrics' },
  'run of this session': { is: 'run', run: 'r' },
  'another run': { is: 'run', run: 'q' },
  'agent of this session': { is: 'agent', sessionId: 'runs/r/this', keyTag: null },
  'agent of another session': { is: 'agent', sessionId: 'another', keyTag: null },
} as const satisfies Record<string, Caller>

export type CallerName = keyof typeof CALLERS

export interface AccessRow {
  route: RouteScope
  /** `yes`, or the status of the refusal. */
  cells: Record<CallerName, string>
}

/** A row for each route; those that answer HEAD beside GET do so for the same callers, and are left out. */
export function accessTable(routes: readonly RouteScope[]): AccessRow[] {
  return routes.filter(({ method }) => method !== 'HEAD').map((route) => ({ route, cells: cellsOf(route) }))
}

function cellsOf({ scope, path, knowsRuns }: RouteScope): AccessRow['cells'] {
  const sessionId = path.includes(':sessionId') ? 'runs/r/this' : undefined
  const cells = Object.entries(CALLERS).map(([name, caller]) => {
    const refusal = checkScope(scope, caller, { sessionId, knowsRuns })
    return [name, refusal ? String(refusal.status) : 'yes']
  })
  return Object.fromEntries(cells)
}

/** One row for all routes of a scope that answer each caller alike: who may, and any refusal that is not the usual one. */
export function accessMarkdown(rows: readonly AccessRow[]): string {
  const names = Object.keys(CALLERS) as CallerName[]
  const alike = Map.groupBy(rows, ({ route, cells }) => {
    const clients = names.filter((name) => cells[name] === 'yes')
    const may = route.scope === 'node' ? ['another node of the database'] : clients
    const others = names.filter((name) => cells[name] !== 'yes' && cells[name] !== refusalOf(name))
    const shown = [...may, ...others.map((name) => `${name}: ${cells[name]}`)]
    return `${route.scope} | ${may.length === names.length ? 'everybody' : shown.join(', ')}`
  })
  return [
    '| scope | who may | routes |',
    '|---|---|---|',
    ...[...alike].map(([cells, group]) => `| ${cells} | ${shownRoutes(group)} |`),
  ].join('\n')
}

const refusalOf = (name: CallerName) => (CALLERS[name].is === 'stranger' ? '401' : '403')

/** By method. A path that is there with and without `/sessions` before it is shown once. */
function shownRoutes(group: AccessRow[]): string {
  const byMethod = Map.groupBy(group, ({ route }) => route.method)
  return [...byMethod]
    .map(([method, rows]) => {
      const paths = rows.map(({ route }) => route.path.replace(/:(\w+)/g, '{$1}'))
      const isTwice = (path: string) => paths.includes(path) && paths.includes(`/sessions${path}`)
      const once = paths.filter((path) => !isTwice(path.replace(/^\/sessions/, '')) || isTwice(path))
      return `${method} ${once.map((path) => `\`${isTwice(path) ? '[/sessions]' : ''}${path}\``).join(', ')}`
    })
    .join('; ')
}
