/** Reads the arrays of a safetensors file by their names, and its metadata. */
export async function readTensors(url: string) {
  const buffer = await (await fetch(url)).arrayBuffer()
  const length = Number(new DataView(buffer).getBigUint64(0, true))
  const { __metadata__: metadata, ...entries } = JSON.parse(Buffer.from(buffer, 8, length).toString())
  const arrays = Object.entries(entries).map(([name, entry]) => {
    const {
      dtype,
      data_offsets: offsets,
      shape,
    } = entry as {
      dtype: 'I32' | 'F32' | 'U8'
      data_offsets: [number, number]
      shape: [number]
    }
    const View = { I32: Int32Array, F32: Float32Array, U8: Uint8Array }[dtype]
    return [name, new View(buffer, 8 + length + offsets[0], shape[0])]
  })
  return { ...Object.fromEntries(arrays), metadata } as Partial<Record<string, Int32Array>> & {
    metadata: Record<string, string>
  }
}
