/** Many concurrent slow streams, as agents have them: measures whether each receives its tokens as they are sampled. */
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import type { LoadJob, LoadResult } from '../parts/load-job.ts'
import { getRssMib } from '../parts/proc-stat.ts'
import { startEngine } from '../parts/start-engine.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { isPassThrough, isTokenMode, type TargetName, Targets } from '../parts/targets.ts'
import type { Row } from './row.ts'

const STREAMS = { full: 2_000, quick: 100 }
const TOKENS_PER_SECOND = 5
const TOKENS = { full: 40, quick: 5 }

export const openStreams: Row = async ({ load, folder, quick, targetNames, cpuProfileFolder }) => {
  const streams = quick ? STREAMS.quick : STREAMS.full
  const maxTokens = quick ? TOKENS.quick : TOKENS.full
  const results: { target: TargetName; result: LoadResult; rss: number }[] = []
  for (const name of targetNames) {
    if (isPassThrough(name) || name === 'floor' || isTokenMode(name)) continue
    await using children = new Children()
    const engine = await startEngine(children, { tokensPerSecond: TOKENS_PER_SECOND })
    const db = join(folder, `open-streams-${name}.db`)
    const target = await new Targets(children, engine.url).start(name, { db, cpuProfileFolder })
    const job: LoadJob = {
      url: target.url,
      ...(target.pid !== undefined && { watchPid: target.pid }),
      ...{
        bodyBytes: 1_000,
        growthBytes: 0,
        stream: true,
        maxTokens,
        concurrency: streams,
        maxRequests: streams,
      },
      ...{ durationMs: 120_000, warmUpMs: 0, requestsPerSession: 1 },
    }
    const result = await load.run(job)
    results.push({ target: name, result, rss: target.pid === undefined ? Number.NaN : getRssMib(target.pid) })
  }
  return {
    row: 'open-streams',
    report: `### ${streams} streams open at once, ${TOKENS_PER_SECOND} tokens a second each\n\n${renderTable(
      ['target', 'completed', 'p50 ms', 'p99 ms', 'CPU s', 'RSS MiB'],
      results.map(({ target, result, rss }) => [
        target,
        String(result.requests),
        formatFigure(result.p50Ms),
        formatFigure(result.p99Ms),
        formatFigure(result.cpuSeconds),
        formatFigure(rss),
      ]),
    )}`,
    aims: results
      .filter(({ target }) => target === 'relay')
      .map(({ result }) => ({
        what: 'streams open at once through relay mode, all completed',
        wanted: String(streams),
        measured: String(result.requests),
        met: result.requests === streams,
      })),
    figures: results,
  }
}
