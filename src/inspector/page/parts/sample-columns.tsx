/** Shows the samples of one task in columns: rewards, final response, and one line per turn. */
import { useEffect, useRef } from 'preact/hooks'
import { describeMissingText } from '../../../protocol/transcript/missing-text.ts'
import { summarizeToolCall, type ToolCallWire } from '../../../protocol/transcript/tool-calls.ts'
import { formatSessionPath, getJson } from '../lib/api.ts'
import { formatNumber, revealInvisible } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref } from '../lib/route.ts'
import { getFinalResponse, loadEach, type Sample } from '../lib/samples.ts'
import type { Turn } from '../lib/wire.ts'
import { Labels, listLabels } from './labels.tsx'
import { Long } from './long-text.tsx'
import { Await, Reward } from './parts.tsx'

/** The maximum number of columns, above the usual size of a group. */
const MAX_COLUMNS = 64

interface SampleColumnsProps {
  samples: readonly Sample[]
  /** The metadata key of the group. */
  by: string
  selected: number
}

export function SampleColumns({ samples, by, selected }: SampleColumnsProps) {
  const box = useRef<HTMLElement>(null)
  const shown = samples.slice(0, MAX_COLUMNS)
  const turns = useLoad(
    (stop) =>
      loadEach(shown, async (id) => {
        const path = formatSessionPath(id, '?messages=none&ids=false')
        return (await getJson<{ turns: Turn[] }>(path, stop)).turns
      }),
    [samples],
  )
  useEffect(() => {
    box.current?.children[selected]?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  }, [selected, turns.value])
  return (
    <Await of={turns}>
      {(loaded) => (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable region must be reachable by keyboard
        <section class="columns" aria-label="Samples side by side" tabIndex={0} ref={box}>
          {shown.map((sample, index) => (
            <Column
              key={sample.session.session_id}
              sample={sample}
              turns={loaded.get(sample.session.session_id) ?? []}
              by={by}
              selected={index === selected}
            />
          ))}
        </section>
      )}
    </Await>
  )
}

interface ColumnProps {
  sample: Sample
  turns: readonly Turn[]
  by: string
  selected: boolean
}

function Column({ sample: { session }, turns, by, selected }: ColumnProps) {
  const { session_id: id, reward, reward_components: components, reward_turns: rewards } = session
  const lastTurn = getFinalResponse(turns)
  return (
    <article class={selected ? 'selected' : ''}>
      <header>
        <a href={formatHref(['session', id], { by })}>{revealInvisible(id)}</a>{' '}
        <Labels of={listLabels(session)} />
        <div>
          reward <Reward value={reward} />
          {Object.entries(components).map(([name, value]) => (
            <small key={name}>
              {' '}
              · {revealInvisible(name)} {formatNumber(value)}
            </small>
          ))}
        </div>
      </header>
      <div class="answer">
        {lastTurn === undefined ? <NoResponse turns={turns} /> : <FinalResponse turn={lastTurn} />}
      </div>
      <ol class="steps">
        {turns.map((turn) => (
          <Step
            key={turn.index}
            turn={turn}
            reward={rewards[turn.index]}
            to={formatHref(['session', id], { by, turn: turn.index })}
          />
        ))}
      </ol>
    </article>
  )
}

function FinalResponse({ turn }: { turn: Turn }) {
  const missing = describeMissingText(turn)
  if (missing !== undefined) return <p class="quiet">{revealInvisible(missing)}</p>
  return (
    <>
      <Long text={turn.completion_text} kind="text" />
      {turn.finish_reason !== 'stop' && (
        <span class="warn">{revealInvisible(turn.finish_reason ?? turn.status)}</span>
      )}
    </>
  )
}

/** Shows why no turn of the main agent role was completed. */
function NoResponse({ turns }: { turns: readonly Turn[] }) {
  const last = turns.findLast(({ agent_role }) => agent_role === 'main')
  return (
    <>
      <p class="quiet">no completed turn{last && `: turn ${last.index} ${last.status}`}</p>
      {last?.error && <p class="bad">{revealInvisible(last.error.message)}</p>}
    </>
  )
}

function Step({ turn, reward, to }: { turn: Turn; reward: number | undefined; to: string }) {
  const calls = (turn.tool_calls as ToolCallWire[]).map(summarizeToolCall)
  return (
    <li>
      <a href={to}>turn {turn.index}</a>{' '}
      {turn.agent_role !== 'main' && <span class="quiet">{revealInvisible(turn.agent_role)} </span>}
      {turn.error && <span class="bad">{revealInvisible(turn.error.code)} </span>}
      {reward !== undefined && (
        <>
          <Reward value={reward} />{' '}
        </>
      )}
      {calls.length === 0 && !turn.error && (
        <span class="quiet">{revealInvisible(describeMissingText(turn) ?? 'text')}</span>
      )}
      {calls.map(({ name, about }, index) => (
        <div key={index} class="step-call" title={revealInvisible(about)}>
          <code class="call-name">{revealInvisible(name)}</code> <code>{revealInvisible(about)}</code>
        </div>
      ))}
    </li>
  )
}
