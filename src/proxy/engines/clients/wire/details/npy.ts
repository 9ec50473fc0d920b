/** Arrays as NumPy writes them to `.npy` files, which is how vLLM sends routed experts. */
import { TENSOR_BYTES, type Tensor, type TensorType } from '../../../../../protocol/details/tensors.ts'

const MAGIC = Buffer.from('\x93NUMPY', 'latin1')

/** Whole numbers that fit in 32 bits: nothing else is an expert's number. */
const TYPES: Readonly<Record<string, TensorType>> = {
  '|u1': 'U8',
  '|i1': 'I8',
  '<u2': 'U16',
  '<i2': 'I16',
  '<i4': 'I32',
}

/**
 * Reads versions 1 to 3 of the format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
 * @returns undefined for anything else than an array of small whole numbers in C's order
 */
export function readNpy(file: Buffer): Tensor | undefined {
  if (file.length < 12 || !file.subarray(0, MAGIC.length).equals(MAGIC)) return undefined
  const isFirst = file[6] === 1
  const headerStart = isFirst ? 10 : 12
  const dataStart = headerStart + (isFirst ? file.readUInt16LE(8) : file.readUInt32LE(8))
  const header = file.toString('latin1', headerStart, dataStart)
  const dtype = TYPES[/'descr': *'([^']*)'/.exec(header)?.[1] ?? '']
  const dimensions = /'shape': *\(([\d, ]*)\)/.exec(header)?.[1]
  if (dtype === undefined || dimensions === undefined || !/'fortran_order': *False/.test(header))
    return undefined
  const shape = dimensions.split(',').flatMap((text) => (text.trim() === '' ? [] : [Number(text)]))
  const data = file.subarray(dataStart)
  const bytes = shape.reduce((product, length) => product * length, TENSOR_BYTES[dtype])
  return data.length === bytes ? { dtype, shape, data } : undefined
}
