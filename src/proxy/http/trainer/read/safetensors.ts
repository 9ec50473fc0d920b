/**
 * Arrays in the safetensors format: eight bytes with the length of a JSON header, the header, the arrays
 * (https://huggingface.co/docs/safetensors/index#format). Everything is little-endian, as Node's platforms are.
 */

export interface NamedArray {
  dtype: 'I32' | 'F32' | 'U8'
  data: Int32Array | Float32Array | Uint8Array
}

/** Arrays begin at multiples of this, so that a reader need not copy them. */
const ALIGNMENT = 8

/** @param metadata text by name, as the format has it */
export function* safetensors(
  tensors: Readonly<Record<string, NamedArray>>,
  metadata: Readonly<Record<string, string>>,
): Generator<Uint8Array> {
  const header: Record<string, unknown> = { __metadata__: metadata }
  let end = 0
  for (const [name, { dtype, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape: [data.length], data_offsets: [end, end + data.byteLength] }
    end += data.byteLength
  }
  const json = Buffer.from(JSON.stringify(header))
  const headerLength = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const head = Buffer.alloc(8 + headerLength, ' ')
  head.writeBigUInt64LE(BigInt(headerLength))
  json.copy(head, 8)
  yield head
  for (const { data } of Object.values(tensors)) {
    yield new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
  }
}
