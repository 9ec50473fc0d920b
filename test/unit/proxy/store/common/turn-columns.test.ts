/** The columns of a turn, as the table of its fields defines them, against those of both databases. */
import Database from 'better-sqlite3'
import t from 'tap'
import {
  IDS_SUMMED,
  packFields,
  TURN_COLUMNS,
  TURN_SUMMED,
  unpackFields,
} from '../../../../../src/proxy/store/common/turn-columns.ts'
import { MIGRATIONS } from '../../../../../src/proxy/store/postgres/schema.ts'
import { migrate } from '../../../../../src/proxy/store/sqlite/schema.ts'

const listDefined = (types: Record<string, string>) =>
  TURN_COLUMNS.map(({ name, type, isNullable }) => `${name} ${types[type]}${isNullable ? '' : ' NOT NULL'}`)

t.test('checksums cover the columns that existing databases have sums of, in their order', async (t) => {
  t.equal(IDS_SUMMED.join(' '), 'prompt_base prompt_shared prompt_rest completion_ids')
  t.equal(
    TURN_SUMMED.join(' '),
    'call_index turn_id dialect started_at_ms retry_count node tools params prompt_node ended_at_ms ' +
      'first_token_at_ms model engine finish_reason stop_reason exact inexact_reason weight_version_start ' +
      'weight_version_end usage completion_text reasoning tool_calls completion_logprobs',
  )
})

t.test('SQLite has these columns', async (t) => {
  const db = new Database(':memory:')
  migrate(db, ':memory:')
  const columns = db.prepare<[], { name: string; type: string; notnull: number }>('PRAGMA table_info(turns)')
  t.strictSame(
    columns
      .all()
      .filter(({ name }) => name !== 'id')
      .map(({ name, type, notnull }) => `${name} ${type}${notnull ? ' NOT NULL' : ''}`)
      .sort(),
    listDefined({ integer: 'INTEGER', real: 'REAL', text: 'TEXT', bytes: 'BLOB' }).sort(),
  )
  db.close()
})

t.test('PostgreSQL has these columns', async (t) => {
  const sql = MIGRATIONS.map((migration) => migration.sql).join(';\n')
  const [, body] = /^CREATE TABLE llm_proxy\.turns \(\n(.*?)\n\);/ms.exec(sql)!
  const added = [...sql.matchAll(/^ALTER TABLE llm_proxy\.turns\s+(ADD COLUMN [^;]*)/gm)]
    .flatMap(([, columns]) => columns!.split(','))
    .map((column) => column.replace(/\s*ADD COLUMN/, ''))
  const columns = [...body!.split('\n'), ...added].map((line) =>
    line
      .replace(/--.*|,\s*$| COLLATE "C"/g, '')
      .trim()
      .replace(/\s+/g, ' '),
  )
  t.strictSame(
    columns.filter((column) => !column.startsWith('id ')).sort(),
    listDefined({ integer: 'bigint', real: 'double precision', text: 'text', bytes: 'bytea' }).sort(),
  )
})

t.test('an open turn has empty values', async (t) => {
  const values = unpackFields(Object.fromEntries(TURN_COLUMNS.map(({ name }) => [name, null])))
  t.match(values, { toolCalls: '[]', annotations: '{}', exact: false, finishReason: null, endedAtMs: null })
})

t.test('texts that UTF-8 cannot represent are read as they were written', async (t) => {
  const written = {
    status: 'completed',
    exact: true,
    model: 'half \ud83d',
    annotations: '{}',
    toolCalls: '[1]',
  }
  const row = packFields('outcome', written)
  t.equal(row.annotations, null)
  t.ok(Buffer.isBuffer(row.model))
  t.match(unpackFields(row), written)
})
