import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { type TObject, Type } from 'typebox'
import { FORMER_NAMES } from '../../src/protocol/schema/former-names.ts'
import { rowDetailFields } from '../../src/protocol/schema/row-details.ts'
import { NewEngineBody, Worker } from '../../src/proxy/http/operator/workers/schemas.ts'
import { FetchBody, NewConsumerBody } from '../../src/proxy/http/trainer/consumers/schemas.ts'
import * as reads from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import * as schemas from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { Trace, TracesQueryBody } from '../../src/proxy/http/trainer/traces/schemas.ts'
import { AGENT_ROLE_HEADERS } from '../../src/proxy/session/roles/agent-role.ts'
import { RESERVED_SEGMENTS } from '../../src/proxy/session/state/sessions.ts'
import { generatedSection } from '../helpers/generated-text.ts'
import { type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'

const PAGE = join(import.meta.dirname, '../../docs/http-api.md')
const page = readFileSync(PAGE, 'utf8')

const CONSUMERS = join(import.meta.dirname, '../../docs/consumers.md')

/** The page's first table of routes; other routes are in another table, with their parameters and responses. */
const ROUTES = /<!-- routes -->(.*?)<!-- \/routes -->/s.exec(page)![1]!

interface Operation {
  summary?: string
  tags?: string[]
  parameters?: { name: string; in: string }[]
}

/** Returns the routes of openapi.json that have one of these tags. */
async function readRoutes({ call }: SessionsApi, ...tags: string[]) {
  const { paths } = (await call('GET', '/openapi.json')).body as {
    paths: Record<string, Record<string, Operation>>
  }
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => tags.some((tag) => operation.tags?.includes(tag)))
      .map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
  )
}

t.test('docs/http-api.md lists the existing routes and parameters', async (t) => {
  const routes = await readRoutes(await startSessionsApi(t), 'sessions', 'traces', 'gateway')
  const isElsewhere = (route: string) =>
    page.includes(`\n| \`${route}\` | `) && !ROUTES.includes(`| \`${route}\` |`)
  const rows = routes
    .filter(({ route }) => !isElsewhere(route))
    .map(({ route, operation }) => `| \`${route}\` | ${operation.summary} |`)
  const table = ['| route | does |', '|---|---|', ...rows].join('\n')
  t.equal(generatedSection(PAGE, 'routes', table), table, 'UPDATE=1 rewrites it')
  for (const { route, operation } of routes) {
    const parameters = (operation.parameters ?? []).filter((parameter) => parameter.in === 'query')
    for (const { name } of parameters) t.match(page, new RegExp(`\`${name}[\`=]`), `${route} ${name}`)
  }
})

t.test('docs/consumers.md lists the existing routes', async (t) => {
  const routes = await readRoutes(await startSessionsApi(t), 'consumers')
  const rows = routes.map(({ route, operation }) => `| \`${route}\` | ${operation.summary} |`)
  const table = ['| route | does |', '|---|---|', ...rows].join('\n')
  t.equal(generatedSection(CONSUMERS, 'routes of consumers', table), table, 'UPDATE=1 rewrites it')
})

const { properties: fetchFields } = FetchBody
const fetchOnlyFields = Object.entries(fetchFields).filter(
  ([name]) => !(name in schemas.TrajectoriesQuery.properties),
)

for (const [name, schema] of Object.entries({
  'fields of a new consumer': NewConsumerBody,
  'fields of a fetch': Type.Object(Object.fromEntries(fetchOnlyFields)),
}))
  t.test(`docs/consumers.md has the ${name} (UPDATE=1 rewrites them)`, async (t) => {
    const table = renderFieldTable(schema)
    t.equal(generatedSection(CONSUMERS, name, table), table)
  })

/** The tables of fields and parameters, by their section's name. */
const TABLES: Record<string, TObject> = {
  'fields of a new session': schemas.NewSessionBody,
  'fields of a session': schemas.Session,
  'fields of a turn': schemas.Turn,
  'fields of a row': schemas.TrajectoryRow,
  'parameters of trajectories': schemas.TrajectoriesQuery,
  'fields of a turn of the tree': reads.TreeTurn,
  'fields of a trace': Trace,
  'fields of an engine or worker': Worker,
}

for (const [name, schema] of Object.entries(TABLES)) {
  t.test(`docs/http-api.md has the ${name} as openapi.json has them (UPDATE=1 rewrites them)`, async (t) => {
    const table = renderFieldTable(omitDetails(schema))
    t.equal(generatedSection(PAGE, name, table), table)
  })
}

/** Returns the type without the fields of token data, which docs/details.md has. */
function omitDetails({ properties }: TObject): TObject {
  const own = Object.entries(properties).filter(([name]) => !(name in rowDetailFields))
  return Type.Object(Object.fromEntries(own))
}

t.test('docs/http-api.md lists the former names (UPDATE=1 writes them)', async (t) => {
  const rows = Object.entries(FORMER_NAMES).map(([name, former]) => `| \`${name}\` | \`${former}\` |`)
  const header = `| ${AGENT_ROLE_HEADERS.map((name) => `\`${name}\``).join(' | ')} |`
  const table = ['| name | deprecated |', '|---|---|', ...rows, header].join('\n')
  t.equal(generatedSection(PAGE, 'former names', table), table)
})

t.test('docs/details.md has the fields that docs/http-api.md omits', async (t) => {
  const details = readFileSync(join(dirname(PAGE), 'details.md'), 'utf8')
  for (const name of Object.keys(rowDetailFields)) t.ok(details.includes(`\`${name}\``), name)
})

/** Renders a table. Neighbours with the same description share a row, and fields without a description another. */
function renderFieldTable({ properties }: TObject): string {
  const rows: { names: string[]; text: string }[] = []
  for (const [name, schema] of Object.entries(properties)) {
    const text = getText(schema as FieldSchema).replace(/docs\/([\w-]+\.md)/g, '[$1]($1)')
    const last = text === '' ? rows.find((row) => row.text === '') : rows.at(-1)
    if (last?.text === text) last.names.push(name)
    else rows.push({ names: [name], text })
  }
  const lines = rows.map(
    ({ names, text }) => `| ${names.map((name) => `\`${name}\``).join(', ')} | ${text} |`,
  )
  return ['| field | |', '|---|---|', ...lines].join('\n').replaceAll('|  |', '| |')
}

interface FieldSchema {
  description?: string
  default?: unknown
  enum?: unknown[]
  anyOf?: FieldSchema[]
}

/** Returns the possible values of a field and its description. */
function getText(schema: FieldSchema): string {
  const inner = schema.anyOf?.find(({ description, enum: values }) => description ?? values) ?? {}
  const values = (schema.enum ?? inner.enum ?? []).map((value) => `\`${value}\``).join(', ')
  const fallback = schema.default === undefined ? '' : `Default: \`${schema.default}\``
  // Every time has this format, and the page describes it once.
  const description = (schema.description ?? inner.description ?? '').replace(
    /[;,]? ?seconds since the epoch$/i,
    '',
  )
  return [values, description, fallback].filter((part) => part !== '').join('. ')
}

t.test('docs/http-api.md names every other field and every reserved id', async (t) => {
  for (const schema of [
    schemas.SessionWithTurns,
    schemas.Trajectories,
    schemas.TrajectoryRow.properties.turns.items,
    reads.SessionList,
    reads.Totals,
    reads.Totals.properties.rewards,
    reads.Group,
    reads.Groups,
    reads.RowSummary,
    reads.Rows,
    reads.TokenTexts,
    reads.ProxyEvent,
    reads.LiveEvent,
    Trace.properties.metadata,
    TracesQueryBody,
    NewEngineBody,
  ]) {
    for (const field of Object.keys(schema.properties)) t.ok(page.includes(`\`${field}\``), field)
  }
  for (const schema of [reads.ProxyEvent, reads.LiveEvent]) {
    for (const type of schema.properties.type.enum) t.ok(page.includes(`\`${type}\``), type)
  }
  for (const segment of RESERVED_SEGMENTS) t.ok(page.includes(`\`${segment}\``), segment)
})

t.test('docs/http-api.md names the routes of health and admin, and the fields of health', async (t) => {
  const api = await startSessionsApi(t)
  const routes = (await readRoutes(api, 'health', 'admin')).map(({ route }) => route)
  t.ok(routes.includes('GET /health') && routes.includes('POST /admin/pause'))
  for (const route of routes) t.ok(page.includes(`\`${route}\``), route)
  const { engines, ...health } = (await api.call('GET', '/health')).body as { engines: object[] }
  for (const field of ['engines', ...Object.keys(health), ...Object.keys(engines[0] ?? {})]) {
    t.ok(page.includes(`\`${field}\``), field)
  }
})
