/** Searches the texts of turns. */
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import { getJson } from '../lib/api.ts'
import { formatAge, formatNumber, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, route, setQuery } from '../lib/route.ts'
import type { SearchHits } from '../lib/wire.ts'
import { Await, Empty, Reward, Sources } from '../parts/parts.tsx'

/** The minimum length of a search text, which the API also requires. */
const MIN_CHARS = 3

export function Search() {
  const text = route.value.query.get('text') ?? ''
  const field = useRef<HTMLInputElement>(null)
  // A layout effect, so that the field has the focus before the next key is pressed.
  useLayoutEffect(() => field.current?.focus(), [])
  useKeys([{ key: '/', help: 'Search for something else', run: () => field.current?.select() }])
  const submit = (event: Event) => {
    event.preventDefault()
    setQuery({ text: field.current!.value })
    field.current!.blur()
  }
  return (
    <div class="scroll">
      <form class="filters" onSubmit={submit}>
        <input
          ref={field}
          type="search"
          value={text}
          minLength={MIN_CHARS}
          placeholder="Text in any turn, case-insensitive   ↵"
          aria-label="Search text"
        />
      </form>
      {text.length >= MIN_CHARS ? (
        <Hits key={text} text={text} />
      ) : (
        <Empty title="Search all turns">
          At least {MIN_CHARS} characters of a completion, or of messages that a request added.
        </Empty>
      )}
    </div>
  )
}

function Hits({ text }: { text: string }) {
  // The cursors of the pages that are shown; undefined: the first page.
  const [cursors, setCursors] = useState<readonly (string | undefined)[]>([undefined])
  const last = cursors.length - 1
  return (
    <>
      {cursors.map((cursor, index) => (
        <Page
          key={cursor}
          text={text}
          cursor={cursor}
          more={index === last ? (next) => setCursors([...cursors, next]) : undefined}
        />
      ))}
      <Sources paths={[getSearchPath(text, undefined)]} />
    </>
  )
}

function getSearchPath(text: string, cursor: string | undefined): string {
  return `search?${new URLSearchParams({ text, ...(cursor !== undefined && { cursor }) })}`
}

/** Loads pages until one has hits: a page is empty if its time limit was reached before a hit was found. */
async function fetchFirstWithHits(text: string, cursor: string | undefined, stop: AbortSignal) {
  let page = await getJson<SearchHits>(getSearchPath(text, cursor), stop)
  while (page.hits.length === 0 && page.next_cursor !== null)
    page = await getJson<SearchHits>(getSearchPath(text, page.next_cursor), stop)
  return page
}

interface PageProps {
  text: string
  cursor: string | undefined
  /** Loads the next page; undefined: it is already shown. */
  more: ((cursor: string) => void) | undefined
}

function Page({ text, cursor, more }: PageProps) {
  const page = useLoad((stop) => fetchFirstWithHits(text, cursor, stop), [text, cursor])
  return (
    <Await of={page}>
      {({ hits, next_cursor: next }) => (
        <>
          {hits.length === 0 && <Empty title={cursor === undefined ? 'No matches' : 'No more matches'} />}
          <ul class="hits">
            {hits.map((hit) => (
              <Hit key={`${hit.turn_id} ${hit.found_in}`} hit={hit} />
            ))}
          </ul>
          {next !== null && more && (
            <button type="button" class="chip" onClick={() => more(next)}>
              More
            </button>
          )}
        </>
      )}
    </Await>
  )
}

function Hit({ hit }: { hit: SearchHits['hits'][number] }) {
  return (
    <li>
      <a href={formatHref(['session', hit.session_id], { turn: hit.index })}>
        {revealInvisible(hit.session_id)} · turn {formatNumber(hit.index)}
      </a>{' '}
      <span class="quiet">
        {hit.found_in === 'completion' ? 'sampled' : 'in the request'}, {formatAge(hit.started_at)}
        {hit.reward !== null && ', reward '}
      </span>
      {hit.reward !== null && <Reward value={hit.reward} />}
      <p>
        {revealInvisible(hit.before)}
        <mark>{revealInvisible(hit.match)}</mark>
        {revealInvisible(hit.after)}
      </p>
    </li>
  )
}
