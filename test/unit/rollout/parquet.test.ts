import { readFileSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import fc from 'fast-check'
import { parquetWriteBuffer } from 'hyparquet-writer'
import t, { type Test } from 'tap'
import { type DatasetRow, inferColumns } from '../../../src/rollout/datasets/parquet-columns.ts'
import { readParquet, writeParquet } from '../../../src/rollout/datasets/parquet-file.ts'
import type { ColumnValue } from '../../../src/rollout/datasets/shape.ts'

/** Objects as JSON.parse makes them. */
const PLAIN = { noNullPrototype: true }

const read = (path: string) => Array.fromAsync(readParquet(path))

async function roundTrip(t: Test, rows: readonly DatasetRow[]) {
  const path = join(t.testdir({}), 'rows.parquet')
  await writeParquet(path, rows)
  return read(path)
}

t.test('rows are read back unchanged, with null for missing fields', async (t) => {
  const rows: DatasetRow[] = [
    {
      text: 'ünï\n',
      yes: true,
      whole: 3,
      real: 0.5,
      list: [[1], [], [2, 3]],
      of: [{ a: 'x', b: 1 }],
      deep: { x: { y: 1 } },
    },
    { text: '', yes: false, whole: -1, real: 2, list: [], of: [{ a: 'y' }, { b: 2 }], deep: {} },
    { text: null, deep: { x: {} }, late: 'z' },
  ]
  t.strictSame(await roundTrip(t, rows), [
    { ...rows[0], late: null },
    {
      ...rows[1],
      of: [
        { a: 'y', b: null },
        { a: null, b: 2 },
      ],
      deep: { x: null },
      late: null,
    },
    {
      text: null,
      yes: null,
      whole: null,
      real: null,
      list: null,
      of: null,
      deep: { x: { y: null } },
      late: 'z',
    },
  ])
})

t.test('columns with different types in rows are text, and JSON for other types', async (t) => {
  const when = new Date(0)
  const values: ColumnValue[] = ['text', 1, { a: [true] }, [1, 'two'], when, null]
  const back = await roundTrip(
    t,
    values.map((mixed) => ({ mixed })),
  )
  t.strictSame(
    back.map(({ mixed }) => mixed),
    ['text', '1', '{"a":[true]}', '[1,"two"]', when.toISOString(), null],
  )
})

t.test('integers and floats in one column become floats; an integer keeps its 64 bits', async (t) => {
  const back = await roundTrip(t, [
    { n: 1, big: 2n ** 62n },
    { n: 0.5, big: 1 },
  ])
  t.strictSame(back, [
    { n: 1, big: String(2n ** 62n) },
    { n: 0.5, big: 1 },
  ])
})

t.test('a column without values is text', async (t) => {
  t.strictSame(await roundTrip(t, [{ none: null, empty: {}, list: [] }]), [
    { none: null, empty: '{}', list: [] },
  ])
})

t.test('rows of one shape are read back unchanged, with any values', async (t) => {
  const path = join(t.testdir({}), 'rows.parquet')
  const text = fc.oneof(fc.string({ unit: 'binary' }), fc.constant('"\\\u2028'))
  const struct = fc.record({ a: fc.option(text), b: fc.option(fc.maxSafeInteger()) }, PLAIN)
  const row = fc.record(
    {
      texts: fc.option(fc.array(fc.option(text), { maxLength: 4 })),
      structs: fc.option(fc.array(fc.option(struct), { maxLength: 4 })),
      nested: fc.option(fc.array(fc.option(fc.array(fc.boolean(), { maxLength: 3 })), { maxLength: 3 })),
      struct: fc.option(struct),
      real: fc.option(fc.double({ noNaN: true })),
    },
    PLAIN,
  )
  // The first row determines each column, whatever the others omit.
  const full = {
    texts: ['x'],
    structs: [{ a: 'x', b: 1 }],
    nested: [[true]],
    struct: { a: 'x', b: 1 },
    real: 0.5,
  }
  await fc.assert(
    fc.asyncProperty(fc.array(row, { maxLength: 20 }), async (rows) => {
      await writeParquet(path, [full, ...rows])
      t.strictSame(await read(path), [full, ...rows])
    }),
    { numRuns: 100 },
  )
})

t.test('files of two splits have one schema that fits both', async (t) => {
  const [train, val] = [[{ m: { a: 1 } }], [{ m: { a: 'x', b: true } }]]
  const all = [...train, ...val]
  t.strictSame(inferColumns(train, all).schema, inferColumns(val, all).schema)
  t.notSame(inferColumns(train).schema, inferColumns(val).schema)
})

t.test('an unchanged file is not rewritten, and a changed one is replaced completely', async (t) => {
  const path = join(t.testdir({}), 'rows.parquet')
  t.equal(await writeParquet(path, [{ a: 1 }]), true)
  utimesSync(path, 1, 1)
  t.equal(await writeParquet(path, [{ a: 1 }]), false)
  t.equal(statSync(path).mtimeMs, 1_000)
  t.equal(await writeParquet(path, [{ a: 2 }]), true)
  writeFileSync(path, readFileSync(path).subarray(0, -1))
  t.equal(await writeParquet(path, [{ a: 2 }]), true, 'a damaged one is repaired')
  t.strictSame(await read(path), [{ a: 2 }])
})

t.test('a file is read row group by row group, with any compression', async (t) => {
  const compressors = {
    GZIP: (input: Uint8Array) => gzipSync(input),
    ZSTD: (input: Uint8Array) => zstdCompressSync(input),
  }
  for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'ZSTD'] as const) {
    const path = join(t.testdir({}), `${codec}.parquet`)
    const data = Array.from({ length: 25 }, (_, index) => `row ${index} ${'x'.repeat(1_000)}`)
    const columnData = [{ name: 'a', data, type: 'STRING' as const }]
    writeFileSync(path, Buffer.from(parquetWriteBuffer({ columnData, codec, compressors, rowGroupSize: 10 })))
    t.strictSame(
      await Array.fromAsync(readParquet(path)),
      data.map((a) => ({ a })),
      codec,
    )
  }
})

t.test('a file that is not Parquet is rejected with its name', async (t) => {
  const folder = t.testdir({ 'text.parquet': 'PAR1 but no more', 'empty.parquet': '' })
  for (const name of ['text.parquet', 'empty.parquet', 'none.parquet']) {
    await t.rejects(read(join(folder, name)), { code: 'start_failed', message: new RegExp(name) })
  }
  await t.rejects(writeParquet(join(folder, 'no', 'such', 'folder.parquet'), [{ a: 1 }]), {
    code: 'start_failed',
    message: /folder\.parquet/,
  })
})
