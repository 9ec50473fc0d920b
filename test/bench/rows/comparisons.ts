import { figure } from '../parts/table.ts'
import { type Comparison, compare, type FigureAt } from './compare.ts'
import type { Aim } from './row.ts'

const CONCURRENCIES = [1, 16, 64]

const SMALL: Comparison = {
  row: 'small',
  title: 'Requests of 1 KB, responses of 32 tokens',
  bodyBytes: 1_000,
  growthBytes: 0,
  stream: false,
  maxTokens: 32,
  inTokenMode: true,
  aims: (at) => floorAims(at, 'a request of 1 KB', 1.5),
}

const LARGE: Comparison = {
  row: 'large',
  title: 'Requests of 160 KB, responses of 100 tokens',
  // A rollout's last twenty requests: from 140 KB on, 2 KB more each time.
  bodyBytes: 140_000,
  growthBytes: 1_500,
  stream: false,
  maxTokens: 100,
  aims: (at) => [
    ...floorAims(at, 'a request of 160 KB', 0.6),
    ...addedAim('added p50 at 160 KB, one request at a time', 1, at('local', 1), at('direct', 1)),
    ...addedAim(
      'added p50 of relay over local at 160 KB, one request at a time',
      0.5,
      at('relay', 1),
      at('local', 1),
    ),
  ],
}

const STREAM: Comparison = {
  row: 'stream',
  title: 'Streams of 200 chunks, 1 KB of request',
  bodyBytes: 1_000,
  growthBytes: 0,
  stream: true,
  maxTokens: 200,
  aims: (at) => [...floorAims(at, 'a stream of 200 chunks', 1.15), ...chunksAim(at)],
}

export const small = compare(SMALL)
export const large = compare(LARGE)
export const stream = compare(STREAM)

/** The CPU time of a request, relative to the least that a recorder needs; see "CPU time by owner" in RESULTS.md. */
function floorAims(at: FigureAt, what: string, wanted: number): Aim[] {
  return CONCURRENCIES.flatMap((concurrency) => {
    const ours = at('local', concurrency)?.cpuMsPerCall.median
    const least = at('floor', concurrency)?.cpuMsPerCall.median
    if (ours === undefined || least === undefined) return []
    return {
      what: `CPU time of ${what} at concurrency ${concurrency}, of floor`,
      wanted: `at most ${wanted}`,
      measured: figure(ours / least),
      met: ours / least <= wanted,
    }
  })
}

function addedAim(what: string, limitMs: number, ours: Figures, base: Figures): Aim[] {
  if (!ours || !base) return []
  const addedMs = ours.p50Ms.median - base.p50Ms.median
  return [{ what, wanted: `under ${limitMs} ms`, measured: `${figure(addedMs)} ms`, met: addedMs < limitMs }]
}

type Figures = ReturnType<FigureAt>

/** One core provides one second of CPU time per second, on whichever threads of the proxy. */
function chunksAim(at: FigureAt): Aim[] {
  const relay = at('relay', 64)
  if (!relay) return []
  const perCpuSecond = (STREAM.maxTokens * 1_000) / relay.cpuMsPerCall.median
  return [
    {
      what: 'relayed and recorded chunks per second of CPU time, 64 streams',
      wanted: '50,000 or more',
      measured: figure(perCpuSecond),
      met: perCpuSecond >= 50_000,
    },
  ]
}
