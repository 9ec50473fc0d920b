/** Links from a sample to its neighbours in the group, in the order of the group screen. */
import { getJson, IS_FILE } from '../lib/api.ts'
import { revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route } from '../lib/route.ts'
import { formatGroupPath, GROUP_KEYS, toSamples } from '../lib/samples.ts'
import type { SessionList, Tree } from '../lib/wire.ts'

interface SampleNavProps {
  session: Pick<Tree, 'session_id' | 'metadata'>
}

/** Renders the links; nothing for a session without a group, or in a file, which contains no lists. */
export function SampleNav({ session }: SampleNavProps) {
  const { metadata } = session
  const by = route.value.query.get('by') ?? GROUP_KEYS.find((key) => key in metadata)
  if (by === undefined || metadata[by] === undefined || IS_FILE) return null
  return <Neighbours session={session} by={by} value={JSON.stringify(metadata[by])} />
}

function Neighbours({
  session: { session_id: id },
  by,
  value,
}: SampleNavProps & { by: string; value: string }) {
  const path = formatGroupPath(by, value)
  const sessions = useLoad(async (stop) => (await getJson<SessionList>(path, stop)).sessions, [path]).value
  const ids = sessions && toSamples(sessions).samples.map(({ session }) => session.session_id)
  const index = ids?.indexOf(id) ?? -1
  const others = {
    before: index > 0 ? ids?.[index - 1] : undefined,
    after: index >= 0 ? ids?.[index + 1] : undefined,
  }
  const open = (to: string | undefined) => to !== undefined && navigate(formatHref(['session', to], { by }))
  useKeys([
    { key: ']', help: 'Next sample of the group', run: () => open(others.after) },
    { key: '[', help: 'Previous sample of the group', run: () => open(others.before) },
  ])
  if (ids === undefined || index < 0 || ids.length < 2) return null
  return (
    <nav class="sample-nav" aria-label={`Samples of one ${revealInvisible(by)}`}>
      {others.before && (
        <a href={formatHref(['session', others.before], { by })} title={revealInvisible(others.before)}>
          ‹ before
        </a>
      )}
      <a href={formatHref(['group', by, value], { view: 'answers' })}>
        sample {index + 1} of {ids.length}
      </a>
      {others.after && (
        <a href={formatHref(['session', others.after], { by })} title={revealInvisible(others.after)}>
          next ›
        </a>
      )}
    </nav>
  )
}
