import t from 'tap'
import { detachBuffer } from '../../../../src/protocol/json/detach-buffer.ts'
import { joinChunks } from '../../../../src/proxy/engines/clients/wire/join-chunks.ts'

t.test('buffers that share their memory with others are unchanged, all others are detached', (t) => {
  const full = Buffer.alloc(10_000, 'x')
  const part = full.subarray(0, 9_999)
  const pooled = Buffer.from('short')
  detachBuffer(part)
  detachBuffer(pooled)
  t.equal(full.toString(), 'x'.repeat(10_000))
  t.equal(pooled.toString(), 'short')
  detachBuffer(full)
  t.equal(full.length, 0)
  t.doesNotThrow(() => detachBuffer(full), 'detaching again is rejected, and has no other effect')
  t.end()
})

t.test('chunks are joined in order, with or without shared memory, at any length', (t) => {
  for (const length of [1, 100, 70_000, 3_000_000]) {
    const read = Buffer.from('0123456789'.repeat(length))
    const createChunks = () => [
      read.subarray(0, 3),
      Buffer.from('between'),
      read.subarray(3, length),
      Buffer.alloc(length, 'y'),
    ]
    const expected = `${createChunks().map(String).join('')}`
    t.ok(joinChunks(createChunks()).equals(Buffer.from(expected)), `${length}`)
    t.ok(read.equals(Buffer.from('0123456789'.repeat(length))), 'the source is unchanged')
  }
  t.end()
})
