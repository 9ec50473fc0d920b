import { revealInvisible } from '../../protocol/transcript/visible.ts'
import type { SessionsShowConfig } from '../../proxy/config/options/sessions.ts'
import { type Column, formatJson, formatNumber, renderTable, toPrintable } from '../table.ts'
import type { TreeJson } from './api.ts'
import { withSessionsApi } from './open-api.ts'
import { formatTranscript } from './transcript.ts'

const ROLE_LENGTH = 20
const REASON_LENGTH = 60

const COLUMNS: readonly Column<TreeJson['turns'][number]>[] = [
  { header: 'turn', value: (turn) => String(turn.index), align: 'right' },
  { header: 'agent role', value: (turn) => toPrintable(turn.agent_role, ROLE_LENGTH) },
  { header: 'status', value: (turn) => turn.status },
  { header: 'excluded', value: (turn) => turn.excluded ?? '-' },
  { header: 'finish', value: (turn) => toPrintable(turn.finish_reason ?? '-') },
  { header: 'prompt', value: (turn) => String(turn.prompt_tokens), align: 'right' },
  { header: 'sampled', value: (turn) => String(turn.sampled_tokens), align: 'right' },
  { header: 'exact', value: (turn) => (turn.exact ? 'yes' : 'no') },
  { header: 'ms', value: (turn) => String(turn.duration_ms ?? '-'), align: 'right' },
  { header: 'new row', value: (turn) => toPrintable(turn.new_row?.text ?? '', REASON_LENGTH) },
]

/** Runs `llm-proxy sessions show <session-id>`. @returns the exit code */
export function run(config: SessionsShowConfig, [sessionId]: string[]): Promise<number> {
  return withSessionsApi(config, async (api) => {
    if (config.json) {
      process.stdout.write(`${formatJson(await api.getWithTurns(sessionId!), 2)}\n`)
      return 0
    }
    const tree = await api.getTree(sessionId!)
    process.stdout.write(`${formatOverview(tree)}\n`)
    if (config.summary) return 0
    const turns = await api.getConversation(sessionId!)
    for (const line of formatTranscript(tree, turns, config.full)) process.stdout.write(`${line}\n`)
    return 0
  })
}

function formatOverview(tree: TreeJson): string {
  const { session_id, status, reward, created_at, labels, note, turns } = tree
  const created = new Date(created_at * 1000).toISOString()
  const head = `${toPrintable(session_id)}: ${status}, reward ${reward === null ? '-' : formatNumber(reward)}, created ${created}`
  const marks = [
    ...(labels.length > 0 ? [`labels: ${toPrintable(labels.join(', '), Number.POSITIVE_INFINITY)}`] : []),
    ...(note === null ? [] : [`note: ${revealInvisible(note)}`]),
  ]
  return `${[head, ...marks].join('\n')}\n\n${renderTable(COLUMNS, turns)}`
}
