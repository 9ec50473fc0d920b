/** The access table of `docs/security.md`, computed from the code: which key permits which route. */
import type { RouteScope } from '../../src/proxy/http/access/guard.ts'
import { type Caller, checkScope } from '../../src/proxy/http/access/scopes.ts'

/** Callers by the heading of their column. `this session`: the session that the path names. */
const CALLERS = {
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
  /** `yes`, or the status of the rejection. */
  cells: Record<CallerName, string>
}

/** Returns a row for each route. HEAD routes are omitted: they permit the same callers as their GET routes. */
export function createAccessTable(routes: readonly RouteScope[]): AccessRow[] {
  return routes.filter(({ method }) => method !== 'HEAD').map((route) => ({ route, cells: getCells(route) }))
}

function getCells({ scope, path, acceptsRunKeys }: RouteScope): AccessRow['cells'] {
  const sessionId = path.includes(':sessionId') ? 'runs/r/this' : undefined
  const cells = Object.entries(CALLERS).map(([name, caller]) => {
    const rejection = checkScope(scope, caller, { sessionId, acceptsRunKeys })
    return [name, rejection ? String(rejection.status) : 'yes']
  })
  return Object.fromEntries(cells)
}

/**
 * Renders one row for all routes of a scope with equal cells: the permitted callers, and rejections with an unusual
 * status.
 */
export function renderAccessTable(rows: readonly AccessRow[]): string {
  const names = Object.keys(CALLERS) as CallerName[]
  const alike = Map.groupBy(rows, ({ route, cells }) => {
    const clients = names.filter((name) => cells[name] === 'yes')
    const permitted = route.scope === 'node' ? ['another node of the database'] : clients
    const others = names.filter((name) => cells[name] !== 'yes' && cells[name] !== getUsualStatus(name))
    const shown = [...permitted, ...others.map((name) => `${name}: ${cells[name]}`)]
    return `${route.scope} | ${permitted.length === names.length ? 'everybody' : shown.join(', ')}`
  })
  return [
    '| scope | who may | routes |',
    '|---|---|---|',
    ...[...alike].map(([cells, group]) => `| ${cells} | ${listRoutes(group)} |`),
  ].join('\n')
}

const getUsualStatus = (name: CallerName) => (CALLERS[name].is === 'stranger' ? '401' : '403')

/** Lists routes by method. A path that exists with and without the prefix `/sessions` is shown once. */
function listRoutes(group: AccessRow[]): string {
  const byMethod = Map.groupBy(group, ({ route }) => route.method)
  return [...byMethod]
    .map(([method, rows]) => {
      const paths = rows.map(({ route }) => route.path.replace(/:(\w+)/g, '{$1}'))
      const hasBothPaths = (path: string) => paths.includes(path) && paths.includes(`/sessions${path}`)
      const shown = paths.filter(
        (path) => !hasBothPaths(path.replace(/^\/sessions/, '')) || hasBothPaths(path),
      )
      return `${method} ${shown.map((path) => `\`${hasBothPaths(path) ? '[/sessions]' : ''}${path}\``).join(', ')}`
    })
    .join('; ')
}
