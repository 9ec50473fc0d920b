import { createWriteStream } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { writeFileAtomically } from '../../base/atomic-file.ts'
import { ProxyError } from '../../base/errors.ts'
import { escapeInvisible } from '../../protocol/transcript/visible.ts'
import type { SessionsExportConfig } from '../../proxy/config/options/sessions.ts'
import { isColumns } from '../../rollout/datasets/row-columns.ts'
import type { SessionsApi } from '../sessions/api.ts'
import { listSessionIds } from '../sessions/list.ts'
import { withSessionsApi } from '../sessions/open-api.ts'

/** Runs `llm-proxy sessions export [session-id...]`: exports these sessions, or all of them. @returns the exit code */
export async function run(config: SessionsExportConfig, sessionIds: string[]): Promise<number> {
  if (config.tokenizer !== undefined && config.format !== 'html')
    throw new ProxyError('config_invalid', '--tokenizer is for --format html')
  if (config.format === 'html') {
    const { createHtmlPage: htmlPage } = await import('./html-page.ts')
    await write(config.output, await htmlPage(config, sessionIds))
  } else {
    const { output } = config
    await withSessionsApi(config, async (api) => {
      const lines = exportLines(api, config, sessionIds)
      if (output === undefined) await write(output, escapeAll(lines))
      else if (!isColumns(output)) await write(output, lines)
      else await (await import('./export-columns.ts')).writeExportColumns(output, config, lines)
    })
  }
  return 0
}

/** Writes the chunks. @param path undefined: stdout */
async function write(
  path: string | undefined,
  chunks: Iterable<string> | AsyncIterable<string>,
): Promise<void> {
  if (path === undefined) await pipeline(Readable.from(chunks), process.stdout, { end: false })
  else {
    await writeFileAtomically(path, (partial) =>
      pipeline(Readable.from(chunks), createWriteStream(partial, { flags: 'wx' })),
    )
  }
}

/** Makes JSON lines safe for a terminal. */
async function* escapeAll(chunks: AsyncIterable<string>): AsyncGenerator<string> {
  for await (const chunk of chunks) yield escapeInvisible(chunk)
}

async function* exportLines(
  api: SessionsApi,
  config: SessionsExportConfig,
  sessionIds: readonly string[],
): AsyncGenerator<string> {
  for await (const sessionId of listSessionIds(api, sessionIds, config.run)) {
    yield* exportSessionLines(api, sessionId, config)
  }
}

async function* exportSessionLines(
  api: SessionsApi,
  sessionId: string,
  { format, select, sideCalls, rejected, finishedOnly, details }: SessionsExportConfig,
): AsyncGenerator<string> {
  const which = { select, side_calls: sideCalls, rejected, finished_only: finishedOnly }
  if (format === 'atif' || format === 'training_trace' || format === 'sft')
    yield* api.exportSession(sessionId, { format, ids: true, ...which })
  else {
    const shown = details.length > 0 ? { ...which, details: details.join(',') } : which
    const rows =
      format === 'turns'
        ? (await api.getWithTurns(sessionId)).turns
        : (await api.getWithTrajectories(sessionId, shown)).trajectories
    for (const row of rows) yield `${JSON.stringify({ session_id: sessionId, ...row })}\n`
  }
}
