import { formatFigure } from '../parts/table.ts'
import { type Comparison, compare, type FigureLookup } from './compare.ts'
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
  createAims: (getFigures) => createFloorAims(getFigures, 'a request of 1 KB', 1.5),
}

const LARGE: Comparison = {
  row: 'large',
  title: 'Requests of 160 KB, responses of 100 tokens',
  // A rollout's last twenty requests: from 140 KB on, 2 KB more each time.
  bodyBytes: 140_000,
  growthBytes: 1_500,
  stream: false,
  maxTokens: 100,
  createAims: (getFigures) => [
    ...createFloorAims(getFigures, 'a request of 160 KB', 0.6),
    ...createAddedLatencyAims(
      'added p50 at 160 KB, one request at a time',
      1,
      getFigures('local', 1),
      getFigures('direct', 1),
    ),
    ...createAddedLatencyAims(
      'added p50 of relay over local at 160 KB, one request at a time',
      0.5,
      getFigures('relay', 1),
      getFigures('local', 1),
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
  createAims: (getFigures) => [
    ...createFloorAims(getFigures, 'a stream of 200 chunks', 1.15),
    ...createChunksAims(getFigures),
  ],
}

export const small = compare(SMALL)
export const large = compare(LARGE)
export const stream = compare(STREAM)

/** Creates aims for the CPU time relative to `floor`; see "CPU time by owner" in RESULTS.md. */
function createFloorAims(getFigures: FigureLookup, what: string, limit: number): Aim[] {
  return CONCURRENCIES.flatMap((concurrency) => {
    const ours = getFigures('local', concurrency)?.cpuMsPerRequest.median
    const floor = getFigures('floor', concurrency)?.cpuMsPerRequest.median
    if (ours === undefined || floor === undefined) return []
    return {
      what: `CPU time of ${what} at concurrency ${concurrency}, of floor`,
      wanted: `at most ${limit}`,
      measured: formatFigure(ours / floor),
      met: ours / floor <= limit,
    }
  })
}

function createAddedLatencyAims(what: string, limitMs: number, ours: Figures, base: Figures): Aim[] {
  if (!ours || !base) return []
  const addedMs = ours.p50Ms.median - base.p50Ms.median
  return [
    { what, wanted: `under ${limitMs} ms`, measured: `${formatFigure(addedMs)} ms`, met: addedMs < limitMs },
  ]
}

type Figures = ReturnType<FigureLookup>

/** Creates the aim for the CPU time of relayed chunks, summed over all threads of the proxy. */
function createChunksAims(getFigures: FigureLookup): Aim[] {
  const relay = getFigures('relay', 64)
  if (!relay) return []
  const perCpuSecond = (STREAM.maxTokens * 1_000) / relay.cpuMsPerRequest.median
  return [
    {
      what: 'relayed and recorded chunks per second of CPU time, 64 streams',
      wanted: '50,000 or more',
      measured: formatFigure(perCpuSecond),
      met: perCpuSecond >= 50_000,
    },
  ]
}
