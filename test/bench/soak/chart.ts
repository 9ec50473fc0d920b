/** The chart of a soak: memory, latency and file size over time, as SVG. */
import { quantile } from '../parts/statistics.ts'
import { getLegName, type Leg } from './plan.ts'
import type { Measurements } from './samples.ts'

const WIDTH = 960
const LEFT = 64
const RIGHT = 24
const PANEL = 150
const GAP = 44
const TOP = 40
/** The number of points of a line. */
const POINTS = 240
const INK = '#222'
const FAINT = '#888'
const LEG_COLOURS = ['#eef3fb', '#fdf5e9', '#eef8ee', '#f8eef6']

interface Point {
  minute: number
  value: number
}

interface Panel {
  title: string
  lines: { name: string; colour: string; points: readonly Point[] }[]
}

export function drawChart({ legs, samples, times }: Measurements, caption: string): string {
  const fromMs = legs[0]!.fromMs
  const minutes = (legs.at(-1)!.toMs - fromMs) / 60_000
  const getMinute = (atMs: number) => (atMs - fromMs) / 60_000
  const toSampleLine = (value: (sample: (typeof samples)[number]) => number) =>
    reduceToPeaks(
      samples.map((sample) => ({ minute: getMinute(sample.atMs), value: value(sample) })),
      minutes,
    )
  const toLatencyLine = (share: number) =>
    reduceToQuantiles(
      times.map(({ atMs, ms }) => ({ minute: getMinute(atMs), value: ms })),
      minutes,
      POINTS / 4,
      share,
    )
  const panels: Panel[] = [
    {
      title: 'RSS in MiB',
      lines: [
        { name: 'proxy', colour: '#1f5fbf', points: toSampleLine(({ proxyMib }) => proxyMib) },
        { name: 'engines and workers', colour: FAINT, points: toSampleLine(({ othersMib }) => othersMib) },
      ],
    },
    {
      title: 'duration of a request in ms',
      lines: [
        { name: 'p50', colour: '#2e8540', points: toLatencyLine(0.5) },
        { name: 'p99', colour: '#b3541e', points: toLatencyLine(0.99) },
      ],
    },
    {
      title: 'database and its log in MiB',
      lines: [{ name: 'file', colour: '#7a3b8f', points: toSampleLine(({ fileMib }) => fileMib) }],
    },
  ]
  const height = TOP + panels.length * (PANEL + GAP) + 10
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" font-family="sans-serif" font-size="12">`,
    `<title>${caption}</title>`,
    `<rect width="${WIDTH}" height="${height}" fill="white"/>`,
    `<text x="${LEFT}" y="20" fill="${INK}">${caption}</text>`,
    ...panels.map((panel, index) => drawPanel(panel, TOP + index * (PANEL + GAP), { minutes, legs, fromMs })),
    '</svg>\n',
  ].join('\n')
}

interface Frame {
  minutes: number
  legs: readonly Leg[]
  fromMs: number
}

function drawPanel({ title, lines }: Panel, top: number, { minutes, legs, fromMs }: Frame): string {
  const maxValue = roundUpNicely(
    Math.max(...lines.flatMap(({ points }) => points.map(({ value }) => value)), 1),
  )
  const x = (minute: number) => LEFT + (minute / minutes) * (WIDTH - LEFT - RIGHT)
  const y = (value: number) => top + PANEL - (value / maxValue) * PANEL
  const shades = legs.map((leg, index) => {
    const from = x((leg.fromMs - fromMs) / 60_000)
    const to = x((leg.toMs - fromMs) / 60_000)
    const box = `x="${toFixed1(from)}" y="${top}" width="${toFixed1(to - from)}" height="${PANEL}"`
    return `<rect ${box} fill="${LEG_COLOURS[index % LEG_COLOURS.length]}"><title>${getLegName(leg)}</title></rect>`
  })
  const levels = [0, maxValue / 2, maxValue].map(
    (value) =>
      `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${toFixed1(y(value))}" y2="${toFixed1(y(value))}" stroke="#ccc"/>` +
      `<text x="${LEFT - 6}" y="${toFixed1(y(value) + 4)}" text-anchor="end" fill="${FAINT}">${value}</text>`,
  )
  const step = roundUpNicely(minutes / 8)
  const ticks = Array.from({ length: Math.floor(minutes / step) + 1 }, (_, index) => index * step).map(
    (minute) =>
      `<text x="${toFixed1(x(minute))}" y="${top + PANEL + 15}" text-anchor="middle" fill="${FAINT}">${minute} min</text>`,
  )
  const keys = lines.map(
    ({ name, colour }, index) =>
      `<text x="${LEFT + 220 + index * 150}" y="${top - 6}" fill="${colour}">&#9644; ${name}</text>`,
  )
  const drawn = lines.map(({ colour, points }) => {
    const path = points.map(
      ({ minute, value }, index) => `${index === 0 ? 'M' : 'L'}${toFixed1(x(minute))} ${toFixed1(y(value))}`,
    )
    return `<path d="${path.join('')}" fill="none" stroke="${colour}" stroke-width="1.3"/>`
  })
  const heading = `<text x="${LEFT}" y="${top - 6}" fill="${INK}">${title}</text>`
  return [heading, ...keys, ...shades, ...levels, ...ticks, ...drawn].join('\n')
}

/** Reduces a line to the maximum of each interval, so that every peak stays visible. */
function reduceToPeaks(points: readonly Point[], minutes: number): Point[] {
  return reduceToQuantiles(points, minutes, POINTS, 1)
}

function reduceToQuantiles(points: readonly Point[], minutes: number, parts: number, share: number): Point[] {
  const intervals = Array.from({ length: parts }, (): number[] => [])
  for (const { minute, value } of points) {
    const index = Math.floor((minute / minutes) * parts)
    if (Number.isFinite(value)) intervals[Math.min(parts - 1, Math.max(0, index))]!.push(value)
  }
  return intervals.flatMap((values, index) =>
    values.length === 0
      ? []
      : [{ minute: ((index + 0.5) * minutes) / parts, value: quantile(values, share) }],
  )
}

/** Rounds up to 1, 2 or 5 times a power of ten. */
function roundUpNicely(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value)!
}

function toFixed1(value: number): string {
  return value.toFixed(1)
}
