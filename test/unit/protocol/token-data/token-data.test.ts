import { inspect } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { getCaptureNames, parseCaptureOptions } from '../../../../src/protocol/token-data/kinds.ts'
import { packTensors, unpackTensors } from '../../../../src/protocol/token-data/tensors.ts'
import {
  packTokenData,
  type TokenData,
  unpackTokenData,
} from '../../../../src/protocol/token-data/token-data.ts'
import { TokenDataBuilder } from '../../../../src/protocol/token-data/token-data-builder.ts'
import { getDetails } from '../../../helpers/reported-details.ts'

const ids = fc.array(fc.integer({ min: 0, max: 2 ** 31 - 1 }), { maxLength: 6 })
const logprob = fc.double({ max: 0 })
const table = fc.array(ids, { maxLength: 8 }).chain((rows) => {
  const flat = rows.flat()
  return fc.record(
    {
      counts: fc.constant(rows.map((row) => row.length)),
      ids: fc.constant(flat),
      logprobs: fc.array(logprob, { minLength: flat.length, maxLength: flat.length }),
    },
    { requiredKeys: ['counts', 'ids'], noNullPrototype: true },
  )
})
const experts = fc
  .tuple(fc.constantFrom(...(['U8', 'U16', 'I16', 'I32'] as const)), fc.nat(5), fc.nat(3), fc.nat(3))
  .chain(([dtype, rows, layers, count]) => {
    const bytes = rows * layers * count * { U8: 1, U16: 2, I16: 2, I32: 4 }[dtype]
    return fc.uint8Array({ minLength: bytes, maxLength: bytes }).map((data) => ({
      start: rows,
      experts: { dtype, shape: [rows, layers, count], data },
    }))
  })
const span = fc.record({ version: fc.string(), start: fc.nat(), end: fc.nat() }, { noNullPrototype: true })
const anyTokenData: fc.Arbitrary<TokenData> = fc.record(
  {
    sampling_mask: table,
    sampling_logprobs: fc.array(logprob),
    top_logprobs: table,
    prompt_logprobs: fc.tuple(table, fc.nat()).map(([rows, start]) => ({ ...rows, start })),
    routed_experts: experts,
    weight_versions: fc.array(span),
  },
  { requiredKeys: [], noNullPrototype: true },
)

/**
 * Formats values that JSON does not distinguish: bytes of buffers and arrays are the same, NaN differs from
 * infinity.
 */
const plain = ({ routed_experts: experts, ...value }: TokenData) =>
  inspect(
    [value, experts && { ...experts, experts: { ...experts.experts, data: [...experts.experts.data] } }],
    {
      depth: null,
      maxArrayLength: null,
      maxStringLength: null,
      sorted: true,
    },
  )

t.test('each kind is unpacked bit for bit', async (t) => {
  fc.assert(
    fc.property(anyTokenData, (tokenData) => {
      t.equal(plain(unpackTokenData(packTokenData(tokenData))), plain(tokenData))
    }),
  )
})

t.test('packed token data is a safetensors file whose arrays are aligned for typed arrays', async (t) => {
  const [packed] = packTokenData({ top_logprobs: { counts: [1], ids: [70_000], logprobs: [-0.1] } })
  const { body } = packed!
  const headerBytes = Number(Buffer.from(body).readBigUInt64LE())
  t.equal(headerBytes % 8, 0)
  const header = JSON.parse(Buffer.from(body).toString('utf8', 8, 8 + headerBytes))
  t.same(header, {
    __metadata__: {},
    logprobs: { dtype: 'F64', shape: [1], data_offsets: [0, 8] },
    ids: { dtype: 'I32', shape: [1], data_offsets: [8, 12] },
    counts: { dtype: 'U8', shape: [1], data_offsets: [12, 13] },
  })
  t.equal(
    body.buffer.byteLength,
    body.byteLength,
    'in its own memory, which can be transferred to another thread',
  )
})

t.test('invalid packed token data is rejected, and never read partially', async (t) => {
  const full = packTokenData(getDetails([1, 2, 3], [4, 5]))
  for (const { kind, body } of full) {
    for (const end of [0, 5, 9, body.length - 1])
      t.throws(
        () => unpackTokenData([{ kind, body: body.subarray(0, end) }]),
        RangeError,
        `${kind}, ${end} bytes`,
      )
  }
  const inconsistent = packTensors({
    tensors: {
      counts: { dtype: 'U8', shape: [1], data: Uint8Array.of(2) },
      ids: { dtype: 'U8', shape: [1], data: Uint8Array.of(9) },
    },
    metadata: {},
  })
  t.throws(() => unpackTokenData([{ kind: 'sampling_mask', body: inconsistent }]), RangeError)
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
      try {
        unpackTensors(bytes)
      } catch (error) {
        t.ok(error instanceof RangeError)
      }
    }),
  )
})

t.test('requested token data is parsed from its names, and written so that it is parsed again', async (t) => {
  t.same(parseCaptureOptions(['sampling_mask', 'top_logprobs', 'prompt_logprobs']), {
    samplingMask: true,
    topLogprobs: 20,
    promptLogprobs: 0,
  })
  const requested = parseCaptureOptions([
    'top_logprobs:256',
    'prompt_logprobs:8',
    'routed_experts',
    'weight_versions',
  ])
  t.same(requested, { topLogprobs: 256, promptLogprobs: 8, routedExperts: true, weightVersions: true })
  t.same(parseCaptureOptions(getCaptureNames(requested)), requested)
  for (const name of [
    '',
    'masks',
    'sampling_mask:3',
    'top_logprobs:',
    'top_logprobs:9999',
    'top_logprobs:-1',
  ])
    t.throws(() => parseCaptureOptions([name]), { code: 'invalid_request', param: 'record' }, name)
})

t.test('token data of a completion does not depend on how it is divided into chunks', async (t) => {
  const chunks = fc.array(fc.tuple(fc.array(fc.nat(50_000), { maxLength: 5 }), fc.boolean()), {
    maxLength: 8,
  })
  fc.assert(
    fc.property(chunks, (cut) => {
      const builder = new TokenDataBuilder()
      const tokens: number[] = []
      for (const [chunk, isReported] of cut) {
        if (isReported) builder.add(getDetails([9], chunk), tokens.length, chunk.length)
        tokens.push(...chunk)
      }
      const {
        sampling_mask: mask,
        top_logprobs: top,
        sampling_logprobs: logprobs,
      } = builder.buildTokenData(tokens.length)
      const expected = cut.flatMap(([chunk, isReported]) =>
        chunk.map((token) => (isReported ? token : undefined)),
      )
      t.equal(
        mask !== undefined,
        cut.some(([, isReported]) => isReported),
      )
      if (mask === undefined) return
      t.equal(mask.counts.length, tokens.length)
      t.equal(top?.counts.length, tokens.length)
      t.equal(logprobs?.length, tokens.length)
      let i = 0
      for (const [index, token] of expected.entries()) {
        const count = mask.counts[index]!
        t.equal(count > 0, token !== undefined, 'a chunk without data leaves its position empty')
        if (token !== undefined) t.equal(mask.ids[i], token)
        i += count
      }
    }),
  )
})

t.test('rows that differ in number from their tokens are rejected', async (t) => {
  const builder = new TokenDataBuilder()
  builder.add(getDetails([1], [2, 3]), 0, 1)
  t.same(Object.keys(builder.buildTokenData(1)).sort(), [
    'prompt_logprobs',
    'routed_experts',
    'weight_versions',
  ])
})
