/**
 * The layout of packed token data: arrays in the safetensors format, which is eight bytes with the length of a JSON
 * header, the header, and the arrays (https://huggingface.co/docs/safetensors/index#format). Every trainer has a reader
 * for it. Everything is little-endian, as Node's platforms are.
 */

export interface Tensor {
  readonly dtype: TensorType
  readonly shape: readonly number[]
  readonly data: Uint8Array
}

interface TensorFile {
  readonly tensors: Readonly<Record<string, Tensor>>
  /** The texts in the header, by name. */
  readonly metadata: Readonly<Record<string, string>>
}

interface ElementArray {
  new (buffer: ArrayBuffer): ArrayLike<number>
  readonly BYTES_PER_ELEMENT: number
}

/** The typed array for the elements of each type. */
const ARRAYS = {
  U8: Uint8Array,
  I8: Int8Array,
  U16: Uint16Array,
  I16: Int16Array,
  I32: Int32Array,
  F32: Float32Array,
  F64: Float64Array,
} satisfies Record<string, ElementArray>

export type TensorType = keyof typeof ARRAYS

export function getElementBytes(dtype: TensorType): number {
  return ARRAYS[dtype].BYTES_PER_ELEMENT
}

/**
 * The alignment of the first array in bytes. Arrays with wider elements come first, so that each array is aligned for
 * its elements and a reader need not copy it.
 */
const ALIGNMENT = 8
const LENGTH_BYTES = 8

export function packTensors({ tensors, metadata }: TensorFile): Buffer {
  const entries = Object.entries(tensors).sort(
    ([, a], [, b]) => getElementBytes(b.dtype) - getElementBytes(a.dtype),
  )
  const header: Record<string, unknown> = { __metadata__: metadata }
  let end = 0
  for (const [name, { dtype, shape, data }] of entries) {
    header[name] = { dtype, shape, data_offsets: [end, end + data.byteLength] }
    end += data.byteLength
  }
  const json = Buffer.from(JSON.stringify(header))
  const headerBytes = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const dataStart = LENGTH_BYTES + headerBytes
  // The buffer is not from the shared pool, so that it can be transferred to another thread.
  const file = Buffer.allocUnsafeSlow(dataStart + end)
  file.writeBigUInt64LE(BigInt(headerBytes))
  file.fill(' ', LENGTH_BYTES, dataStart)
  json.copy(file, LENGTH_BYTES)
  let offset = dataStart
  for (const [, { data }] of entries) {
    file.set(data, offset)
    offset += data.byteLength
  }
  return file
}

/** Parses a packed file. @throws RangeError for any other bytes */
export function unpackTensors(bytes: Uint8Array): TensorFile {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (file.length < LENGTH_BYTES) throw new RangeError('packed token data is truncated')
  const dataStart = LENGTH_BYTES + Number(file.readBigUInt64LE())
  if (dataStart > file.length) throw new RangeError('packed token data is truncated')
  const { __metadata__: metadata = {}, ...entries } = parseHeader(file.subarray(LENGTH_BYTES, dataStart))
  const data = file.subarray(dataStart)
  const tensors = Object.entries(entries).map(([name, entry]) => [name, toTensor(entry, data)])
  return { tensors: Object.fromEntries(tensors), metadata: metadata as Record<string, string> }
}

function parseHeader(json: Buffer): Record<string, unknown> {
  try {
    return JSON.parse(json.toString())
  } catch {
    throw new RangeError('packed token data has no header')
  }
}

function toTensor(entry: unknown, data: Buffer): Tensor {
  const { dtype, shape, data_offsets: offsets } = (entry ?? {}) as Record<string, unknown>
  if (!isTensorType(dtype) || !isCounts(shape) || !isCounts(offsets) || offsets.length !== 2)
    throw new RangeError('packed token data has an array of unknown layout')
  const [start, end] = offsets as [number, number]
  const bytes = shape.reduce((product, length) => product * length, getElementBytes(dtype))
  if (end > data.length || end - start !== bytes)
    throw new RangeError('packed token data has an array whose size differs from its header')
  return { dtype, shape, data: data.subarray(start, end) }
}

function isTensorType(dtype: unknown): dtype is TensorType {
  return typeof dtype === 'string' && Object.hasOwn(ARRAYS, dtype)
}

function isCounts(numbers: unknown): numbers is number[] {
  return Array.isArray(numbers) && numbers.every((number) => Number.isSafeInteger(number) && number >= 0)
}

const [MAX_U8, MAX_U16] = [0xff, 0xffff]

/**
 * Packs integers into the narrowest type that can represent them all. They must be non-negative and fit into 32 bits.
 */
export function createIntegerTensor(values: readonly number[]): Tensor {
  let largest = 0
  for (const value of values) if (value > largest) largest = value
  const [dtype, array] =
    largest <= MAX_U8
      ? (['U8', Uint8Array.from(values)] as const)
      : largest <= MAX_U16
        ? (['U16', Uint16Array.from(values)] as const)
        : (['I32', Int32Array.from(values)] as const)
  return { dtype, shape: [values.length], data: toBytes(array) }
}

/** Packs numbers as float32 if that is lossless for all of them (engines compute in float32), otherwise as float64. */
export function createNumberTensor(values: readonly number[]): Tensor {
  const full = Float64Array.from(values)
  const halved = Float32Array.from(values)
  const lossless = Buffer.from(toBytes(Float64Array.from(halved))).equals(toBytes(full))
  const [dtype, array] = lossless ? (['F32', halved] as const) : (['F64', full] as const)
  return { dtype, shape: [values.length], data: toBytes(array) }
}

/** Returns the numbers of a tensor of any type. @throws RangeError if it is missing */
export function toNumbers(tensor: Tensor | undefined): number[] {
  if (tensor === undefined) throw new RangeError('packed token data lacks an array')
  // The data is copied, because a typed array must be aligned.
  const { buffer } = Uint8Array.from(tensor.data)
  const Elements: ElementArray = ARRAYS[tensor.dtype]
  return Array.from(new Elements(buffer))
}

function toBytes(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength)
}
