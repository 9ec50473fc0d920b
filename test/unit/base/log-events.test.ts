/**
 * The catalogue of log events: the source logs exactly the listed events, and docs/logs.md lists the same.
 */
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { LOG_EVENTS, LOG_FIELDS, type LogEventName, logEvent } from '../../../src/base/log-events.ts'
import { isLevelEnabled, type Logger, withContext } from '../../../src/base/logger.ts'
import { generatedSection } from '../../helpers/generated-text.ts'
import { createListingLogger } from '../../helpers/listing-logger.ts'
import { silentLogger } from '../../helpers/silent-logger.ts'

const ROOT = join(import.meta.dirname, '../../..')
const DOC = join(ROOT, 'docs/logs.md')
const events = Object.entries(LOG_EVENTS)

/** Levels that differ between lines of one event, as docs/logs.md describes them. */
const CHOSEN_LEVELS: Record<string, string> = {
  code: 'of the [code](errors.md)',
  chosen: 'debug; info with `--log-requests`',
}

t.test('docs/logs.md has every event with its level and fields (UPDATE=1 writes them)', async (t) => {
  const rows = events.map(([name, { level, message, fields }]) => {
    const names = (fields as readonly string[]).map((field) =>
      field.endsWith('?') ? `[${field.slice(0, -1)}]` : field,
    )
    const shown = CHOSEN_LEVELS[level] ?? level
    return `| \`${name}\` | ${shown} | ${message} | ${names.join(', ')} |`
  })
  const table = ['| event | level | message | fields |', '|---|---|---|---|', ...rows].join('\n')
  t.equal(generatedSection(DOC, 'events', table), table)
})

t.test('docs/logs.md explains every field (UPDATE=1 writes them)', async (t) => {
  const rows = Object.entries(LOG_FIELDS).map(([name, { doc }]) => `| \`${name}\` | ${doc} |`)
  const table = ['| field | meaning |', '|---|---|', ...rows].join('\n')
  t.equal(generatedSection(DOC, 'fields', table), table)
})

t.test('each field belongs to an event, in alphabetical order', async (t) => {
  const used = new Set(events.flatMap(([, { fields }]) => fields.map((field) => field.replace('?', ''))))
  t.strictSame(Object.keys(LOG_FIELDS), [...used].sort())
})

t.test('the source logs every event of the catalogue, and no other', async (t) => {
  const names = new Set<string>()
  const others: string[] = []
  for (const path of globSync('src/**/*.{ts,tsx}', { cwd: ROOT })) {
    const text = readFileSync(join(ROOT, path), 'utf8')
    if (/\blog(ger)?\??\.(debug|info|audit|warn|error)\(/i.test(text)) others.push(path)
    if (!text.includes("/log-events.ts'")) continue
    for (const [, name] of text.matchAll(/'([a-z]+(?:_[a-z]+)*)'/g)) names.add(name!)
  }
  const missing = events.map(([name]) => name).filter((name) => !names.has(name))
  t.strictSame({ missing, others }, { missing: [], others: [] })
})

t.test('a line has the name of its event, its level and its message', async (t) => {
  const { logger, lines } = createListingLogger()
  logEvent(logger, 'engine_down', { engine: 'http://e', reason: 'connection refused' })
  logEvent(logger, 'server_stopped', {})
  t.strictSame(lines, [
    {
      ...{ level: 'warn', message: 'Engine is down and receives no requests', event: 'engine_down' },
      ...{ engine: 'http://e', reason: 'connection refused' },
    },
    { level: 'info', message: 'Server stopped', event: 'server_stopped' },
  ])
})

t.test('a failed request is logged at the level of its error code', async (t) => {
  const { logger, lines } = createListingLogger()
  for (const code of ['session_ended', 'engine_failed', 'internal', 'start_failed'] as const)
    logEvent(logger, 'request_failed', { code, status: 500, request_id: 'r', reason: 'x' })
  t.strictSame(
    lines.map(({ level }) => level),
    ['info', 'warn', 'error', 'error'],
  )
})

t.test('an event whose caller chooses the level is debug unless another one is given', async (t) => {
  const { logger, lines } = createListingLogger()
  const turn = { session_id: 's', request_id: 'r', turn_id: 't', turn_index: 0, turn_status: 'completed' }
  const tokens = { prompt_tokens: 1, reused_tokens: 0, sampled_tokens: 1 }
  const fields = { ...turn, ...tokens, dialect: 'chat', queue_ms: 0, total_ms: 1, attempts: 1 }
  const retries = { retry_count: 0, joined_retries: 0 }
  logEvent(logger, 'turn_ended', { ...fields, ...retries })
  logEvent(logger, 'turn_ended', { ...fields, ...retries }, 'info')
  t.strictSame(
    lines.map(({ level }) => level),
    ['debug', 'info'],
  )
})

t.test(
  'a context logger writes the levels of its logger; one that reports none writes no debug lines',
  async (t) => {
    const { logger } = createListingLogger()
    const levels = ['debug', 'info', 'error'] as const
    const write = (each: Logger) => levels.filter((level) => isLevelEnabled(each, level))
    const quiet = { ...logger, isLevelEnabled: (level: string) => level === 'error' }
    t.strictSame(write(logger), ['info', 'error'])
    t.strictSame(write(withContext(logger, {})), ['info', 'error'])
    t.strictSame(write(withContext(quiet, {})), ['error'])
  },
)

t.test('an administrative request has its own level, and is info where a logger lacks it', async (t) => {
  const fields = { route: 'DELETE /sessions/:sessionId', by: 'admin', address: '127.0.0.1', status: 200 }
  const { logger, lines } = createListingLogger()
  const { audit: _, ...plain } = logger
  for (const each of [logger, plain]) logEvent(each, 'admin_request', fields)
  logEvent(silentLogger, 'admin_request', fields)
  t.strictSame(
    lines.map(({ level }) => level),
    ['audit', 'info'],
  )
})

t.test('a context logger adds its fields to each line, at any depth', async (t) => {
  const { logger, lines } = createListingLogger()
  const session = withContext(logger, { session_id: 's' })
  const turn = withContext(session, { turn_id: 't' })
  for (const event of ['turn_not_recorded', 'turn_not_updated'] satisfies LogEventName[])
    logEvent(turn, event, { session_id: 's', err: undefined })
  const { audit: _, ...plain } = logger
  logEvent(withContext(plain, { by: 'admin' }), 'admin_request', { route: 'r', address: 'a', status: 200 })
  t.match(lines, [
    { session_id: 's', turn_id: 't', level: 'error' },
    { session_id: 's', turn_id: 't' },
    { by: 'admin', level: 'info' },
  ])
})

t.test('without a logger an event is dropped', async (t) => {
  t.doesNotThrow(() => logEvent(undefined, 'server_stopped', {}))
})
