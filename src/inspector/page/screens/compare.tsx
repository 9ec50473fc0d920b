/** Compares two rows: shows where they diverge, and the differences of each turn. */

import { diffArrays } from 'diff'
import { useMemo, useState } from 'preact/hooks'
import { formatSessionPath } from '../lib/api.ts'
import { formatNumber, revealExactly, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, route, setQuery } from '../lib/route.ts'
import { joinTokenTexts, loadRow, type RowData } from '../lib/row-texts.ts'
import { HeatMap } from '../parts/heat-map.tsx'
import { Await, Empty, Reward, Sources } from '../parts/parts.tsx'

/** The number of tokens that are shown before and after the first difference. */
const BEFORE = 120
const AFTER = 400

/** The number of tokens of a completion that are compared; the cost of a diff grows with the square of its edits. */
const MAX_DIFF = 3_000

/** A reference to a row: `session#row`. */
interface RowReference {
  sessionId: string
  row: number
}

function parseRowReference(text: string | null): RowReference | undefined {
  if (text === null || text === '') return undefined
  const mark = text.lastIndexOf('#')
  if (mark === -1) return { sessionId: text, row: 0 }
  return { sessionId: text.slice(0, mark), row: Number(text.slice(mark + 1)) || 0 }
}

export function Compare() {
  const query = route.value.query
  const [a, b] = [parseRowReference(query.get('a')), parseRowReference(query.get('b'))]
  return (
    <div class="compare scroll">
      <div class="filters">
        {(['a', 'b'] as const).map((name) => (
          <label key={name}>
            {name.toUpperCase()}{' '}
            <input
              type="text"
              placeholder="session id, or session-id#row"
              aria-label={`Row ${name}`}
              value={query.get(name) ?? ''}
              onChange={(event) => setQuery({ [name]: event.currentTarget.value })}
            />
          </label>
        ))}
        <button
          type="button"
          class="chip"
          onClick={() => setQuery({ a: query.get('b') ?? undefined, b: query.get('a') ?? undefined })}
        >
          swap
        </button>
      </div>
      {a && b ? (
        <Both a={a} b={b} />
      ) : (
        <Empty title="Two rows to compare">
          Enter two rows as <code>session-id#row</code>, or press <kbd>c</kbd> on two samples of a group.
        </Empty>
      )}
    </div>
  )
}

function Both({ a, b }: { a: RowReference; b: RowReference }) {
  const rows = useLoad(
    (stop) => Promise.all([loadRow(a.sessionId, a.row, stop), loadRow(b.sessionId, b.row, stop)]),
    [a.sessionId, a.row, b.sessionId, b.row],
  )
  return (
    <>
      <Await of={rows}>{([left, right]) => <Difference left={left} right={right} />}</Await>
      <Sources paths={[a, b].map(({ sessionId }) => formatSessionPath(sessionId, '/rows'))} />
    </>
  )
}

/** Returns the first index at which two lists differ; undefined if they are equal. */
function findDivergence(left: ArrayLike<number>, right: ArrayLike<number>): number | undefined {
  const end = Math.min(left.length, right.length)
  for (let index = 0; index < end; index += 1) if (left[index] !== right[index]) return index
  return left.length === right.length ? undefined : end
}

function Difference({ left, right }: { left: RowData; right: RowData }) {
  const divergence = useMemo(() => findDivergence(left.ids, right.ids), [left, right])
  const [turn, setTurn] = useState(0)
  const turns = Math.max(left.row.turns.length, right.row.turns.length)
  useKeys([
    { key: 'j', help: 'Next turn', run: () => setTurn((index) => Math.min(turns - 1, index + 1)) },
    { key: 'k', help: 'Previous turn', run: () => setTurn((index) => Math.max(0, index - 1)) },
  ])
  const isInPrompt =
    divergence !== undefined && divergence < Math.max(left.row.prompt_tokens, right.row.prompt_tokens)
  return (
    <>
      <p class="verdict">
        {divergence === undefined ? (
          <>The rows are the same, token for token.</>
        ) : (
          <>
            The first token that differs is <b>{formatNumber(divergence)}</b>
            {isInPrompt ? ', in the prompt' : ''}.
          </>
        )}
      </p>
      <div class="pair">
        <Side read={left} divergence={divergence} />
        <Side read={right} divergence={divergence} />
      </div>
      <table class="plain-table">
        <thead>
          <tr>
            {['Turn', 'A sampled', 'B sampled', 'Equal'].map((title) => (
              <th key={title}>{title}</th>
            ))}
            <td />
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: turns }, (_, index) => (
            <TurnLine
              key={index}
              place={index}
              left={left}
              right={right}
              selected={index === turn}
              select={() => setTurn(index)}
            />
          ))}
        </tbody>
      </table>
      <TurnDifference left={left} right={right} turn={turn} />
    </>
  )
}

/** Shows one row around the first difference. @param divergence its position; undefined: the rows are equal */
function Side({ read, divergence }: { read: RowData; divergence: number | undefined }) {
  const marked = useMemo(() => new Set(divergence === undefined ? [] : [divergence]), [divergence])
  const { sessionId, row, ids } = read
  return (
    <section>
      <h2>
        <a
          href={formatHref(['tokens', sessionId, row.row], divergence === undefined ? {} : { t: divergence })}
        >
          {revealInvisible(sessionId)}
        </a>{' '}
        <span class="quiet">row {row.row}</span>
        <Reward value={row.reward} />
      </h2>
      {divergence !== undefined && (
        <HeatMap
          read={read}
          by="mask"
          selected={-1}
          marked={marked}
          from={Math.max(0, divergence - BEFORE)}
          to={Math.min(ids.length, divergence + AFTER)}
        />
      )}
    </section>
  )
}

function getSampledIds(read: RowData, turn: number): { ids: number[]; from: number } {
  const span = read.row.turns[turn]
  if (span === undefined) return { ids: [], from: 0 }
  const from = read.row.prompt_tokens + span.start
  return { ids: [...read.ids.subarray(from, read.row.prompt_tokens + span.end)], from }
}

/** The two rows that are compared. */
interface RowPair {
  left: RowData
  right: RowData
}

function TurnLine({
  left,
  right,
  place: index,
  selected,
  select,
}: RowPair & { place: number; selected: boolean; select(): void }) {
  const [a, b] = [getSampledIds(left, index).ids, getSampledIds(right, index).ids]
  const divergence = findDivergence(a, b)
  const isSame = divergence === undefined
  return (
    <tr class={selected ? 'selected' : ''} onClick={select} onKeyDown={() => {}}>
      <td class="num">{index}</td>
      <td class="num">{index < left.row.turns.length ? formatNumber(a.length) : '–'}</td>
      <td class="num">{index < right.row.turns.length ? formatNumber(b.length) : '–'}</td>
      <td class={isSame ? 'good' : 'warn'}>{isSame ? 'all' : `first ${formatNumber(divergence)}`}</td>
      <td>
        <button type="button" onClick={select}>
          show
        </button>
      </td>
    </tr>
  )
}

/** Shows the tokens that a turn sampled in only one of the two rows. Tokens are compared by id. */
function TurnDifference({ left, right, turn }: RowPair & { turn: number }) {
  const chunks = useMemo(() => {
    const [a, b] = [getSampledIds(left, turn), getSampledIds(right, turn)]
    const changes = diffArrays(a.ids.slice(0, MAX_DIFF), b.ids.slice(0, MAX_DIFF))
    let [atA, atB] = [a.from, b.from]
    return changes.map(({ added, removed, value }) => {
      const read = added ? right : left
      const from = added ? atB : atA
      if (!added) atA += value.length
      if (!removed) atB += value.length
      const texts = joinTokenTexts(read, from, from + value.length)
      return { kind: added ? 'added' : removed ? 'removed' : 'same', texts }
    })
  }, [left, right, turn])
  return (
    <section class="turn-difference">
      <h2>
        Turn {turn} <span class="quiet">struck out: only A sampled it; highlighted: only B</span>
      </h2>
      {chunks.length === 0 ? (
        <p class="quiet">Neither row sampled a token here.</p>
      ) : (
        <pre>
          {chunks.map(({ kind, texts }, index) => (
            <span key={index} class={kind}>
              {revealExactly(texts)}
            </span>
          ))}
        </pre>
      )}
    </section>
  )
}
