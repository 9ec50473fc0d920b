/** A chart of the logprobs of a row by position. */
import { useMemo } from 'preact/hooks'
import type uPlot from 'uplot'
import type { RowData } from '../lib/row-texts.ts'
import { Chart } from './chart.tsx'

/** The number of points that a screen can show. A longer row is divided into chunks with one point each. */
const MAX_POINTS = 4_000

export function LogprobChart({ read, pick }: { read: RowData; pick(index: number): void }) {
  const data = useMemo(() => findLowestLogprobs(read), [read])
  return <Chart data={data} hasPoints={false} range={(low) => [Math.min(-1, low), 0]} pick={pick} />
}

/** Returns the lowest logprob of the trained tokens in each chunk, at least -50; null if a chunk has no such token. */
function findLowestLogprobs({ ids, mask, logprobs }: RowData): uPlot.AlignedData {
  const step = Math.max(1, Math.ceil(ids.length / MAX_POINTS))
  const indices: number[] = []
  const values: (number | null)[] = []
  for (let start = 0; start < ids.length; start += step) {
    let [index, value]: [number, number | null] = [start, null]
    for (let offset = start; offset < Math.min(ids.length, start + step); offset += 1) {
      if (mask[offset] === 1 && (value === null || logprobs[offset]! < value))
        [index, value] = [offset, Math.max(logprobs[offset]!, -50)]
    }
    indices.push(index)
    values.push(value)
  }
  return [indices, values]
}
