/** Shows the properties of a session: status, reward, labels, counts, rows and metadata. */
import type { ComponentChildren } from 'preact'
import { IS_FILE } from '../lib/api.ts'
import {
  formatClockTime,
  formatDuration,
  formatNumber,
  formatShortNumber,
  revealInvisible,
} from '../lib/format.ts'
import { formatHref } from '../lib/route.ts'
import { isRowSplit, listWeightVersions } from '../lib/turns.ts'
import type { Row, Tree } from '../lib/wire.ts'
import { type LabelsEditor, LabelsView } from './labels.tsx'
import { Reward, Tag } from './parts.tsx'
import { SampleNav } from './sample-nav.tsx'

/** The maximum number of links to rows, so that they do not fill the header of the page. */
const MAX_ROW_LINKS = 12

interface SessionFactsProps {
  tree: Tree
  /** The rows; undefined: not loaded yet. */
  rows: readonly Row[] | undefined
  labelsEditor: LabelsEditor
  /** Whether the form for its labels is open. */
  edits: boolean
}

export function SessionFacts({ tree, rows, labelsEditor, edits }: SessionFactsProps) {
  const prompt = tree.turns.reduce((sum, turn) => sum + turn.prompt_tokens, 0)
  const shared = tree.turns.reduce((sum, turn) => sum + turn.shared_tokens, 0)
  const broken = tree.turns.filter(isRowSplit).length
  const versions = listWeightVersions(tree.turns)
  return (
    <header class="facts">
      <h1>
        <i class={`dot ${tree.open_turns > 0 ? 'live' : tree.status}`} /> {revealInvisible(tree.session_id)}
      </h1>
      <SampleNav session={tree} />
      <dl>
        <Fact name="status">
          {tree.open_turns > 0 ? <Tag kind="live">running</Tag> : <Tag kind={tree.status}>{tree.status}</Tag>}
        </Fact>
        <Fact name="reward">
          <Reward value={tree.reward} />
          <Components of={tree.reward_components} />
        </Fact>
        <Fact name="labels and note">
          <LabelsView of="session" values={tree} editor={labelsEditor} edits={edits} />
        </Fact>
        <Fact name="turns">
          {formatNumber(tree.turn_count)}
          {tree.failed_turns > 0 && <em class="bad"> {tree.failed_turns} failed</em>}
          {tree.inexact_turns > 0 && <em class="warn"> {tree.inexact_turns} inexact</em>}
        </Fact>
        <Fact name="sampled">{formatNumber(tree.sampled_tokens)}</Fact>
        <Fact name="prompts re-used">
          {prompt === 0 ? '–' : `${((shared / prompt) * 100).toFixed(1)} %`}{' '}
          <small>of {formatShortNumber(prompt)}</small>
        </Fact>
        <Fact name="rows split">{broken === 0 ? 'never' : <em class="warn">{broken} ×</em>}</Fact>
        <Fact name="rows">
          {rows === undefined ? '…' : <RowLinks sessionId={tree.session_id} rows={rows} />}
        </Fact>
        {versions.length > 0 && <Fact name="weights">{versions.map(revealInvisible).join(' → ')}</Fact>}
        <Fact name="created">
          {formatClockTime(tree.created_at)}{' '}
          <small>{formatDuration((tree.updated_at - tree.created_at) * 1000)}</small>
        </Fact>
        {Object.entries(tree.metadata).map(([name, value]) => (
          <Fact key={name} name={revealInvisible(name)}>
            <MetadataValue name={name} value={value} />
          </Fact>
        ))}
      </dl>
    </header>
  )
}

function Components({ of }: { of: Tree['reward_components'] }) {
  const components = Object.entries(of)
  if (components.length === 0) return null
  return (
    <small>
      {' '}
      {components.map(([name, value]) => `${revealInvisible(name)} ${formatNumber(value)}`).join(' · ')}
    </small>
  )
}

function RowLinks({ sessionId, rows }: { sessionId: string; rows: readonly Row[] }) {
  const trained = rows.reduce((sum, row) => sum + row.trained_tokens, 0)
  return (
    <>
      {rows.slice(0, MAX_ROW_LINKS).map(({ row, agent_role, response_tokens }) => (
        <a
          key={row}
          class="rowlink"
          href={formatHref(['tokens', sessionId, row])}
          title={`${agent_role}: ${formatNumber(response_tokens)} tokens`}
        >
          {row}
        </a>
      ))}
      <small> {formatShortNumber(trained)} trained</small>
    </>
  )
}

/** A metadata value with a link to all sessions that have it; without a link in a file, which contains one session. */
function MetadataValue({ name, value }: { name: string; value: unknown }) {
  const text = revealInvisible(typeof value === 'string' ? value : JSON.stringify(value)).slice(0, 160)
  if (IS_FILE) return <>{text}</>
  return (
    <a href={formatHref(['group', name, JSON.stringify(value)])} title="sessions with this value">
      {text}
    </a>
  )
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  )
}
