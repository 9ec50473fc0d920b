/** The inspector, a page that shows recorded sessions in a browser. */
import { render } from 'preact'
import { keyError } from './lib/api.ts'
import { route } from './lib/route.ts'
import { Shell } from './parts/shell.tsx'
import { Compare } from './screens/compare.tsx'
import { Engines } from './screens/engines.tsx'
import { GroupScreen } from './screens/group.tsx'
import { Groups } from './screens/groups.tsx'
import { Rollouts } from './screens/rollouts.tsx'
import { Search } from './screens/search.tsx'
import { SessionScreen } from './screens/session.tsx'
import { Sessions } from './screens/sessions.tsx'
import { Tokens } from './screens/tokens.tsx'

function Page() {
  const [view = 'sessions', first = '', second = ''] = route.value.path
  // `keyError` is a part of the key so that the view is remounted, and loads its data again, when an API key is
  // entered.
  const key = `${view}/${first}/${second}/${keyError.value ?? ''}`
  switch (view) {
    case 'session':
      return <SessionScreen key={key} sessionId={first} />
    case 'tokens':
      return <Tokens key={key} sessionId={first} row={Number(second) || 0} />
    case 'groups':
      return <Groups key={key} />
    case 'group':
      return <GroupScreen key={key} by={first} value={second} />
    case 'compare':
      return <Compare key={key} />
    case 'engines':
      return <Engines key={key} />
    case 'search':
      return <Search key={key} />
    case 'rollouts':
      return <Rollouts key={key} />
    default:
      return <Sessions key={key} />
  }
}

function App() {
  return (
    <Shell>
      <Page />
    </Shell>
  )
}

render(<App />, document.getElementById('app')!)
