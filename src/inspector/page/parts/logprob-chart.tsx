/** Logprobs along a row. */
import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import type { ReadRow } from '../lib/row-texts.ts'

/** Points that a screen can show; of each stretch the lowest is kept. */
const MAX_POINTS = 4_000
const HEIGHT = 110

export function LogprobChart({ read, pick }: { read: ReadRow; pick(place: number): void }) {
  const box = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const element = box.current!
    const style = getComputedStyle(element)
    const colour = (name: string) => style.getPropertyValue(name).trim()
    const axis = {
      stroke: colour('--quiet'),
      grid: { stroke: colour('--line'), width: 1 },
      ticks: { show: false },
      font: '11px system-ui',
    }
    const plot = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { range: (_plot, low) => [Math.min(-1, low), 0] } },
        axes: [
          { ...axis, size: 24 },
          { ...axis, size: 44, label: '' },
        ],
        series: [{}, { stroke: colour('--accent'), width: 1, points: { show: false }, spanGaps: false }],
        hooks: {
          init: [
            (made) =>
              made.over.addEventListener('click', () => {
                const at = made.cursor.idx
                if (at !== null && at !== undefined) pick(made.data[0][at]!)
              }),
          ],
        },
      },
      lowest(read),
      element,
    )
    const measure = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }))
    measure.observe(element)
    return () => {
      measure.disconnect()
      plot.destroy()
    }
  }, [read])
  return <div class="chart" ref={box} />
}

/** Of each stretch the lowest logprob that is trained; null where none is. */
function lowest({ ids, mask, logprobs }: ReadRow): uPlot.AlignedData {
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
