/**
 * The database of an older program yields the same rows, byte for byte, so that trained data does not change.
 *
 * `older-database/` has a database of commit 9fc4fe7 and its rows. Sessions of each dialect, in chat and in token mode,
 * local and through a worker: conversations with truncated completions and tidied echoes, tools, a sub-agent in
 * between, edits, compaction, samples of one prompt, attempts of one request.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'

type Row = Record<string, unknown>

const unpack = (name: string) =>
  brotliDecompressSync(readFileSync(join(import.meta.dirname, 'older-database', `${name}.br`)))

t.test('rows of a database of 9fc4fe7', async (t) => {
  const db = join(t.testdir({}), 'record.db')
  writeFileSync(db, unpack('record.db'))
  const proxy = await startProxy(t, { db })
  const responses = JSON.parse(unpack('rows.json').toString()) as Record<string, Row[]>
  t.equal(Object.keys(responses).length, 88)
  for (const [path, rows] of Object.entries(responses)) {
    const { trajectories } = (await proxy.get(path)) as { trajectories: Row[] }
    const today = rows.map((row, index) => getMembers(trajectories[index] ?? {}, row))
    t.equal(JSON.stringify(today), JSON.stringify(rows), path)
    t.equal(trajectories.length, rows.length, path)
  }
})

/** Ignores members that rows and their turns have gained since. */
function getMembers(row: Row, older: Row): Row {
  const today = (name: string) => (name === 'turns' ? getTurns(row.turns, older.turns) : row[name])
  return Object.fromEntries(Object.keys(older).map((name) => [name, today(name)]))
}

function getTurns(turns: unknown, older: unknown): Row[] {
  return (turns as Row[]).map((turn, index) => getMembers(turn, (older as Row[])[index] ?? {}))
}
