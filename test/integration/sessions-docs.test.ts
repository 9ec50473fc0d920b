import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { NewEngineBody, Worker } from '../../src/proxy/http/operator/workers/schemas.ts'
import * as reads from '../../src/proxy/http/trainer/read/schemas.ts'
import * as schemas from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { Trace, TracesQueryBody } from '../../src/proxy/http/trainer/traces/schemas.ts'
import { RESERVED_SEGMENTS } from '../../src/proxy/session/state/sessions.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const page = readFileSync(join(import.meta.dirname, '../../docs/http-api.md'), 'utf8')

interface Operation {
  tags?: string[]
  parameters?: { name: string; in: string }[]
}

t.test('docs/http-api.md lists the routes and parameters that there are', async (t) => {
  const { call } = await startSessionsApi(t)
  const { paths } = (await call('GET', '/openapi.json')).body as {
    paths: Record<string, Record<string, Operation>>
  }
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, { tags }]) => ['sessions', 'traces', 'gateway'].some((tag) => tags?.includes(tag)))
      .map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
  )
  const documented = [...page.matchAll(/^\| `([A-Z]+ \/\S*)` \|/gm)].map((match) => match[1])
  t.same(documented.sort(), routes.map(({ route }) => route).sort())
  for (const { route, operation } of routes) {
    const parameters = (operation.parameters ?? []).filter((parameter) => parameter.in === 'query')
    for (const { name } of parameters) t.match(page, new RegExp(`\`${name}[\`=]`), `${route} ${name}`)
  }
})

t.test('docs/http-api.md names every field and every reserved id', async (t) => {
  for (const schema of [
    schemas.NewSessionBody,
    schemas.SessionWithTurns,
    schemas.Turn,
    schemas.Trajectories,
    reads.SessionList,
    reads.Totals,
    reads.Totals.properties.rewards,
    reads.Group,
    reads.Groups,
    reads.TreeTurn,
    reads.RowSummary,
    reads.Rows,
    reads.TokenTexts,
    reads.ProxyEvent,
    reads.LiveEvent,
  ]) {
    for (const field of Object.keys(schema.properties)) t.ok(page.includes(`\`${field}\``), field)
  }
  for (const schema of [schemas.TrajectoryRow, schemas.TrajectoryRow.properties.turns.items]) {
    for (const field of Object.keys(schema.properties)) t.ok(page.includes(`\`${field}\``), field)
  }
  for (const schema of [Trace, Trace.properties.metadata, TracesQueryBody, Worker, NewEngineBody]) {
    for (const field of Object.keys(schema.properties)) t.ok(page.includes(`\`${field}\``), field)
  }
  for (const schema of [reads.ProxyEvent, reads.LiveEvent]) {
    for (const type of schema.properties.type.enum) t.ok(page.includes(`\`${type}\``), type)
  }
  for (const segment of RESERVED_SEGMENTS) t.ok(page.includes(`\`${segment}\``), segment)
})

t.test('docs/http-api.md names the routes of health and admin, and the fields of health', async (t) => {
  const { call } = await startSessionsApi(t)
  const { paths } = (await call('GET', '/openapi.json')).body as {
    paths: Record<string, Record<string, Operation>>
  }
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, { tags }]) => tags?.includes('health') || tags?.includes('admin'))
      .map(([method]) => `${method.toUpperCase()} ${path}`),
  )
  t.ok(routes.includes('GET /health') && routes.includes('POST /admin/pause'))
  for (const route of routes) t.ok(page.includes(`\`${route}\``), route)
  const { engines, ...health } = (await call('GET', '/health')).body as { engines: object[] }
  for (const field of ['engines', ...Object.keys(health), ...Object.keys(engines[0] ?? {})]) {
    t.ok(page.includes(`\`${field}\``), field)
  }
})
