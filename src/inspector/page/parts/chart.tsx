/** A line chart, in which a click selects a point. */
import { useEffect, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'

const HEIGHT = 110

interface ChartProps {
  /** The x values and the y values. The chart is redrawn when the array is replaced. */
  data: uPlot.AlignedData
  hasPoints: boolean
  /** Returns the limits of the y axis for the smallest and largest value. */
  range(low: number, high: number): [number, number]
  /** Called when a point is clicked. @param x the x value of the point */
  pick(x: number): void
}

/** The possible distances between two ticks of an axis of integers. */
const WHOLE_STEPS = Array.from({ length: 8 }, (_, power) =>
  [1, 2, 5].map((step) => step * 10 ** power),
).flat()

const dark = matchMedia('(prefers-color-scheme: dark)')

/**
 * Returns whether the colour scheme is dark. A canvas is not restyled, so it must be redrawn when the scheme changes.
 */
function useDark(): boolean {
  const [isDark, setDark] = useState(dark.matches)
  useEffect(() => {
    const change = () => setDark(dark.matches)
    dark.addEventListener('change', change)
    return () => dark.removeEventListener('change', change)
  }, [])
  return isDark
}

export function Chart({ data, hasPoints, range, pick }: ChartProps) {
  const box = useRef<HTMLDivElement>(null)
  const latest = useRef({ range, pick })
  latest.current = { range, pick }
  const isDark = useDark()
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
        scales: {
          x: { time: false },
          y: { range: (_plot, low, high) => latest.current.range(low ?? 0, high ?? 0) },
        },
        axes: [
          { ...axis, size: 24, ...(Array.from(data[0]).every(Number.isInteger) && { incrs: WHOLE_STEPS }) },
          { ...axis, size: 44, label: '' },
        ],
        series: [{}, { stroke: colour('--accent'), width: 1, points: { show: hasPoints }, spanGaps: false }],
        hooks: {
          init: [
            (made) =>
              made.over.addEventListener('click', () => {
                const at = made.cursor.idx
                if (at !== null && at !== undefined) latest.current.pick(made.data[0][at]!)
              }),
          ],
        },
      },
      data,
      element,
    )
    const measure = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }))
    measure.observe(element)
    return () => {
      measure.disconnect()
      plot.destroy()
    }
  }, [data, hasPoints, isDark])
  return <div class="chart" ref={box} />
}
