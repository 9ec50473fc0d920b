/** Shows the tokens of one training-ready row. */
import { useMemo, useState } from 'preact/hooks'
import { formatSessionPath, getJson } from '../lib/api.ts'
import { type ColourProperty, findRange, STEPS } from '../lib/colours.ts'
import { formatNumber, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route, setQuery } from '../lib/route.ts'
import { getTokenText, loadRow, type RowData } from '../lib/row-texts.ts'
import { findEngineRequest, listRowVersions } from '../lib/turns.ts'
import type { Row } from '../lib/wire.ts'
import { AlternativesView } from '../parts/alternatives.tsx'
import { HeatMap } from '../parts/heat-map.tsx'
import { LogprobChart } from '../parts/logprob-chart.tsx'
import { Await, Chip, Empty, getScrollableProps, Sources, Tag } from '../parts/parts.tsx'

/** The logprob below which a token counts as unlikely: a probability of 1 in 100. */
const UNLIKELY = Math.log(0.01)

/** Returns the properties by which tokens can be coloured. */
function getColourings({ added }: RowData): readonly ColourProperty[] {
  return ['logprob', 'mask', 'turn', 'weights', ...added.keys()]
}

export function Tokens({ sessionId, row }: { sessionId: string; row: number }) {
  const read = useLoad((stop) => loadRow(sessionId, row, stop), [sessionId, row])
  // The row is loaded first, because the summaries of all rows cost the proxy as much as the tokens of one.
  const isRead = read.value !== undefined
  const rows = useLoad(
    async (stop) => {
      if (!isRead) return undefined
      return (await getJson<{ rows: Row[] }>(formatSessionPath(sessionId, '/rows'), stop)).rows
    },
    [sessionId, isRead],
  ).value
  return (
    <div class="tokens">
      <header class="facts">
        <h1>
          <a href={formatHref(['session', sessionId])}>{revealInvisible(sessionId)}</a>{' '}
          <span class="quiet">tokens of row</span>{' '}
          <select
            value={row}
            aria-label="Row"
            onChange={(event) => navigate(formatHref(['tokens', sessionId, event.currentTarget.value]))}
          >
            {(rows ?? [{ row, agent_role: '', response_tokens: 0 }]).map((each) => (
              <option key={each.row} value={each.row}>
                {each.row} {each.agent_role}{' '}
                {each.response_tokens > 0 ? `(${formatNumber(each.response_tokens)})` : ''}
              </option>
            ))}
          </select>
        </h1>
      </header>
      <Await of={read}>{(value) => <RowView read={value} />}</Await>
      <Sources
        paths={[
          formatSessionPath(sessionId, '/rows'),
          formatSessionPath(sessionId, `/rows/${row}/token_texts`),
        ]}
      />
    </div>
  )
}

function RowView({ read }: { read: RowData }) {
  const query = route.value.query
  const colours = getColourings(read)
  const by = colours.find((name) => name === query.get('by')) ?? 'logprob'
  const [over, setOver] = useState<{ place: number; box: DOMRect } | undefined>()
  const start = useMemo(() => findCompletionStart(read, query.get('turn')), [read])
  const selected = query.has('t') ? Number(query.get('t')) : start
  const unlikely = useMemo(() => findUnlikelyTokens(read), [read])
  useTokenKeys({ read, selected, unlikely, by })
  if (read.ids.length === 0) {
    const { inexact_reason: reason } = read.row
    return <Empty title="This row has no tokens">{reason ?? 'Its turn has no exact ids.'}</Empty>
  }
  return (
    <>
      <div class="switches">
        {colours.map((name) => (
          <Chip key={name} on={by === name} onClick={() => setQuery({ by: name })}>
            {name.replaceAll('_', ' ')}
          </Chip>
        ))}
        <Legend by={by} read={read} />
        <span class="space" />
        <RowSummary read={read} unlikely={unlikely.length} />
      </div>
      <LogprobChart read={read} pick={pick} />
      <div class="text-scroll" {...getScrollableProps('Tokens')}>
        <HeatMap
          read={read}
          by={by}
          selected={selected}
          onPick={pick}
          onSight={(index, element) =>
            setOver(element && { place: index, box: element.getBoundingClientRect() })
          }
        />
      </div>
      <TokenBar read={read} place={over?.place ?? selected} />
      <AlternativesView read={read} place={over?.place ?? selected} />
    </>
  )
}

/** Returns the positions of the trained tokens in the row that are unlikely. */
function findUnlikelyTokens({ ids, mask, logprobs }: RowData): number[] {
  const indices: number[] = []
  for (let index = 0; index < ids.length; index += 1)
    if (mask[index] === 1 && logprobs[index]! < UNLIKELY) indices.push(index)
  return indices
}

function pick(index: number | undefined): void {
  if (index !== undefined) setQuery({ t: index })
}

/** The state of the keyboard commands. */
interface TokenKeyState {
  read: RowData
  selected: number
  unlikely: readonly number[]
  by: ColourProperty
}

function useTokenKeys({ read, selected, unlikely, by }: TokenKeyState): void {
  const { sessionId, row, ids, turns } = read
  const colours = getColourings(read)
  const turnStarts = row.turns.map(({ start }) => row.prompt_tokens + start)
  const findNext = (indices: readonly number[]) => indices.find((index) => index > selected)
  const findPrevious = (indices: readonly number[]) => indices.findLast((index) => index < selected)
  const nextColours = colours[(colours.indexOf(by) + 1) % colours.length]
  const openTurn = () => {
    const turn = turns[selected] ?? -1
    if (turn >= 0) navigate(formatHref(['session', sessionId], { turn }))
  }
  useKeys([
    { key: 'n', help: 'Next unlikely token (1 in 100 or less)', run: () => pick(findNext(unlikely)) },
    { key: 'p', help: 'Previous unlikely token', run: () => pick(findPrevious(unlikely)) },
    { key: 'j', help: 'Next turn', run: () => pick(findNext(turnStarts)) },
    { key: 'k', help: 'Previous turn', run: () => pick(findPrevious(turnStarts)) },
    { key: 'ArrowRight', help: 'Next token', run: () => pick(Math.min(ids.length - 1, selected + 1)) },
    { key: 'ArrowLeft', help: 'Previous token', run: () => pick(Math.max(0, selected - 1)) },
    { key: 'm', help: 'Next colours', run: () => setQuery({ by: nextColours }) },
    { key: 'Enter', help: 'The turn of the token', run: openTurn },
  ])
}

/** Shows the counts of a row. @param unlikely the number of unlikely tokens */
function RowSummary({ read: { row, texts }, unlikely }: { read: RowData; unlikely: number }) {
  return (
    <span class="summary">
      <b>{formatNumber(row.prompt_tokens)}</b> prompt · <b>{formatNumber(row.response_tokens)}</b> response ·{' '}
      <b>{formatNumber(row.trained_tokens)}</b> trained · mean logprob <b>{formatNumber(row.mean_logprob)}</b>{' '}
      · <b>{formatNumber(unlikely)}</b> unlikely
      {texts === null && <Tag kind="warn">no tokenizer is available: ids are shown</Tag>}
      {!row.exact && <Tag kind="bad">{revealInvisible(row.inexact_reason ?? 'inexact')}</Tag>}
    </span>
  )
}

/** Returns the position of a turn's first sampled token in the row; -1 if there is none. */
function findCompletionStart({ row }: RowData, turn: string | null): number {
  const span = turn === null ? undefined : row.turns.find(({ index }) => index === Number(turn))
  return span ? row.prompt_tokens + span.start : -1
}

function Scale({ from, to }: { from: string; to: string }) {
  return (
    <span class="legend">
      {from}
      {Array.from({ length: STEPS }, (_, step) => (
        <i key={step} class={`p${step}`} />
      ))}
      {to} <span class="quiet">· trained tokens only</span>
    </span>
  )
}

function Legend({ by, read }: { by: ColourProperty; read: RowData }) {
  if (by === 'logprob') return <Scale from="certain" to="unlikely" />
  const range = findRange(read.added.get(by) ?? new Float32Array())
  if (range !== undefined)
    return <Scale from={formatNumber(range.most, 4)} to={formatNumber(range.least, 4)} />
  if (by === 'mask') {
    return (
      <span class="legend">
        <i class="trained" /> trained <i class="elsewhere" /> sampled, trained in another row{' '}
        <i class="read" /> read
      </span>
    )
  }
  if (by === 'turn')
    return <span class="legend">{read.row.turns.length} turns, each completion in a separate colour</span>
  const versions = listRowVersions(read.row)
  return (
    <span class="legend">
      {versions.map((version, index) => (
        <span key={version}>
          <i class={`k${index % 6}`} /> {revealInvisible(version ?? 'unknown')}
        </span>
      ))}
    </span>
  )
}

/** Shows all properties of one token. */
function TokenBar({ read, place: position }: { read: RowData; place: number }) {
  const { ids, mask, logprobs, turns, row, texts, added } = read
  if (position < 0 || position >= ids.length) {
    return (
      <div class="token-bar quiet" {...getScrollableProps('Token')}>
        Point at a token, click one to link to it, or press n for the next unlikely one.
      </div>
    )
  }
  const turn = turns[position]!
  const span = row.turns.find(({ index }) => index === turn)
  const sampledBy = findEngineRequest(span, position - row.prompt_tokens)
  const version = sampledBy ? sampledBy.weight_version : span?.weight_version_end
  const isTrained = mask[position] === 1
  return (
    <div class="token-bar" {...getScrollableProps('Token')}>
      <span>
        token <b>{formatNumber(position)}</b>
      </span>
      <span>
        id <b>{ids[position]}</b>
      </span>
      {texts !== null && <code>{revealInvisible(JSON.stringify(getTokenText(read, position)))}</code>}
      {isTrained ? (
        <span>
          logprob <b>{formatNumber(logprobs[position]!, 4)}</b>{' '}
          <small>p {formatNumber(Math.exp(logprobs[position]!), 4)}</small>
        </span>
      ) : (
        <Tag kind="plain">
          {turn >= 0
            ? 'trained in another row'
            : position < row.prompt_tokens
              ? 'prompt'
              : 'read, not sampled'}
        </Tag>
      )}
      {[...added].map(([name, numbers]) =>
        Number.isNaN(numbers[position]) ? null : (
          <span key={name}>
            {name.replaceAll('_', ' ')} <b>{formatNumber(numbers[position]!, 4)}</b>
          </span>
        ),
      )}
      {turn >= 0 && <a href={formatHref(['session', read.sessionId], { turn })}>turn {turn}</a>}
      {version && <span class="quiet">weights {revealInvisible(version)}</span>}
      {sampledBy && (
        <span class="quiet">
          engine request {formatNumber(span!.engine_requests!.indexOf(sampledBy) + 1)} of{' '}
          {formatNumber(span!.engine_requests!.length)}
        </span>
      )}
    </div>
  )
}
