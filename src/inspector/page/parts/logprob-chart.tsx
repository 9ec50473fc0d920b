/** A chart of the logprobs along a row. */
import { useMemo } from 'preact/hooks'
import type uPlot from 'uplot'
import type { RowData } from '../lib/row-texts.ts'
import { Chart } from './chart.tsx'

/** The number of points that a screen can show. A longer row is divided into chunks, which show their lowest value. */
const MAX_POINTS = 4_000

export function LogprobChart({ read, pick }: { read: RowData; pick(place: number): void }) {
  const data = useMemo(() => lowest(read), [read])
  return <Chart data={data} hasPoints={false} range={(low) => [Math.min(-1, low), 0]} pick={pick} />
}

/** Returns the lowest logprob of a trained token in each chunk; null if it has none. */
function lowest({ ids, mask, logprobs }: RowData): uPlot.AlignedData {
  const step = Math.max(1, Math.ceil(ids.length / MAX_POINTS))
  const places: number[] = []
  const values: (number | null)[] = []
  for (let start = 0; start < ids.length; start += step) {
    let [place, value]: [number, number | null] = [start, null]
    for (let at = start; at < Math.min(ids.length, start + step); at += 1) {
      if (mask[at] === 1 && (value === null || logprobs[at]! < value))
        [place, value] = [at, Math.max(logprobs[at]!, -50)]
    }
    places.push(place)
    values.push(value)
  }
  return [places, values]
}
