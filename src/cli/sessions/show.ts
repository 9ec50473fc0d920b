import type { SessionsShowConfig } from '../../proxy/config/options/sessions.ts'
import { type Column, printable, renderTable } from '../table.ts'
import type { SessionWithTurnsJson, TurnJson } from './api.ts'
import { withSessionsApi } from './open-api.ts'

const PREVIEW_LENGTH = 60
const LINE_LENGTH = 20

const COLUMNS: readonly Column<TurnJson>[] = [
  { header: 'turn', value: (turn) => String(turn.index), align: 'right' },
  { header: 'line', value: (turn) => printable(turn.line, LINE_LENGTH) },
  { header: 'status', value: (turn) => turn.status },
  { header: 'finish', value: (turn) => turn.finish_reason ?? '-' },
  { header: 'prompt', value: (turn) => String(turn.prompt_token_ids.length), align: 'right' },
  { header: 'sampled', value: (turn) => String(turn.completion_token_ids.length), align: 'right' },
  { header: 'exact', value: (turn) => (turn.exact ? 'yes' : 'no') },
  { header: 'ms', value: (turn) => String(turn.latency_ms ?? '-'), align: 'right' },
  { header: 'completion', value: (turn) => printable(previewOf(turn), PREVIEW_LENGTH) },
]

/** `llm-proxy sessions show <session-id>`. @returns the exit code */
export function run(config: SessionsShowConfig, [sessionId]: string[]): Promise<number> {
  return withSessionsApi(config, async (api) => {
    const session = await api.withTurns(sessionId!)
    process.stdout.write(`${config.json ? JSON.stringify(session, undefined, 2) : render(session)}\n`)
    return 0
  })
}

function render(session: SessionWithTurnsJson): string {
  const { session_id, status, reward, created_at, turns } = session
  const created = new Date(created_at * 1000).toISOString()
  const head = `${printable(session_id)}: ${status}, reward ${reward ?? '-'}, created ${created}`
  return `${head}\n\n${renderTable(COLUMNS, turns)}`
}

/** What the turn came to: text, else the calls that it made, else its error. */
function previewOf({ completion_text, tool_calls, error }: TurnJson): string {
  if (completion_text !== '') return completion_text
  if (tool_calls.length > 0) return JSON.stringify(tool_calls)
  return error === null ? '' : `${error.code}: ${error.message}`
}
