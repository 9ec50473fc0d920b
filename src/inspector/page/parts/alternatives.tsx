/** Shows the recorded alternatives to a token, which are loaded when the token is selected. */
import { useMemo } from 'preact/hooks'
import { formatSessionPath, getJson } from '../lib/api.ts'
import { formatNumber, revealInvisible } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { RowData } from '../lib/row-texts.ts'
import type { Alternatives } from '../lib/wire.ts'
import { getScrollableProps } from './parts.tsx'

/** The number of tokens per request; more than one, because the pointer usually moves to a neighbour. */
const BLOCK = 64
/** The time that the pointer must rest on a token before its alternatives are loaded. */
const REST_MS = 120

type AlternativesBlock = Alternatives['alternatives']

export function AlternativesView({ read, place: index }: { read: RowData; place: number }) {
  const known = useMemo(() => new Map<number, AlternativesBlock>(), [read])
  const block = Math.floor(index / BLOCK)
  const isSampled = read.mask[index] === 1
  const loaded = useLoad(
    async (stop) => {
      if (!isSampled) return undefined
      const before = known.get(block)
      if (before !== undefined) return { read, block, alternatives: before }
      await new Promise((resolve) => setTimeout(resolve, REST_MS))
      if (stop.aborted) return undefined
      const { alternatives } = await getJson<Alternatives>(getAlternativesPath(read, block), stop)
      known.set(block, alternatives)
      return { read, block, alternatives }
    },
    [read, block, isSampled],
  ).value
  const isHere = loaded?.read === read && loaded.block === block
  const here = isSampled && isHere ? loaded.alternatives[index - block * BLOCK] : undefined
  return (
    <div class="alternatives" {...getScrollableProps('Alternatives')}>
      {here && <span class="quiet">alternatives</span>}
      {here?.map(({ id, logprob, text }) => (
        <span key={id} class={id === read.ids[index] ? 'sampled' : ''} title={`id ${id}, logprob ${logprob}`}>
          <code>{text === null ? id : revealInvisible(JSON.stringify(text))}</code>{' '}
          <small>{logprob === null ? '' : `p ${formatNumber(Math.exp(logprob), 4)}`}</small>
        </span>
      ))}
    </div>
  )
}

function getAlternativesPath({ sessionId, row }: RowData, block: number): string {
  return formatSessionPath(sessionId, `/rows/${row.row}/alternatives?from=${block * BLOCK}&count=${BLOCK}`)
}
