/** The frame around every view: navigation, the form for the API key, and the list of keys. */
import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks'
import { getJson, IS_FILE, isReadOnly, isUnreachable, keyError, setKey } from '../lib/api.ts'
import { commands, useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route } from '../lib/route.ts'
import type { Health } from '../lib/wire.ts'

const ALL_VIEWS = [
  { name: 'sessions', title: 'Sessions', key: '1' },
  { name: 'groups', title: 'Groups', key: '2' },
  { name: 'compare', title: 'Compare', key: '3' },
  { name: 'engines', title: 'Engines', key: '4' },
  { name: 'rollouts', title: 'Rollouts', key: '5' },
  { name: 'search', title: 'Search', key: '6' },
] as const

/** Returns the available views: a file contains only its sessions, and a proxy may run no rollouts. */
function getViews(health: Health | undefined) {
  if (IS_FILE) return ALL_VIEWS.filter(({ name }) => name === 'sessions' || name === 'compare')
  return ALL_VIEWS.filter(({ name }) => name !== 'rollouts' || health?.rollouts)
}

export function Shell({ children }: { children: ComponentChildren }) {
  const helps = useSignal(false)
  const health = useLoad((stop) => getJson<Health>('health', stop), [keyError.value]).value
  useEffect(() => {
    isReadOnly.value = IS_FILE || health?.mode === 'view'
  }, [health])
  const [view = 'sessions'] = route.value.path
  const views = getViews(health)
  const title = views.find(({ name }) => name === view)?.title
  useKeys([
    ...views.map(({ name, title, key }) => ({ key, help: title, run: () => navigate(formatHref([name])) })),
    { key: '?', help: 'Show or hide the keys', run: () => (helps.value = !helps.value) },
    {
      key: 'Escape',
      help: 'Close, or go back',
      run: () => {
        if (helps.value) helps.value = false
        else if (view !== 'sessions') history.back()
      },
    },
  ])
  return (
    <>
      <header class="top">
        <a class="name" href="#/sessions">
          <span class="mark" />
          llm-proxy
        </a>
        <nav>
          {views.map(({ name, title }) => (
            <a key={name} href={formatHref([name])} class={isWithin(view, name) ? 'here' : ''}>
              {title}
            </a>
          ))}
        </nav>
        <span class="where">
          {health?.db && <code title="database">{health.db}</code>}
          {health && <span class={`tag ${health.status === 'ok' ? 'plain' : 'bad'}`}>{health.mode}</span>}
          <button type="button" class="help" title="Keys" onClick={() => (helps.value = !helps.value)}>
            ?
          </button>
        </span>
      </header>
      {isUnreachable.value && (
        <p class="away" role="status">
          Proxy unreachable. Reconnecting…
        </p>
      )}
      {keyError.value === undefined ? (
        <main>
          {/* Views that the navigation does not list render their own heading. */}
          {title !== undefined && <h1 class="unseen">{title}</h1>}
          {children}
        </main>
      ) : (
        <KeyForm why={keyError.value} />
      )}
      {helps.value && <Help close={() => (helps.value = false)} />}
    </>
  )
}

function isWithin(view: string, name: string): boolean {
  return view === name || { session: 'sessions', tokens: 'sessions', group: 'groups' }[view] === name
}

function KeyForm({ why: reason }: { why: string }) {
  const input = useRef<HTMLInputElement>(null)
  useLayoutEffect(() => input.current?.focus(), [])
  const take = (event: Event) => {
    event.preventDefault()
    setKey(input.current!.value)
    // Makes every view reload its data.
    dispatchEvent(new HashChangeEvent('hashchange'))
  }
  return (
    <main>
      <form class="key" onSubmit={take}>
        <h1>API key required</h1>
        <p>{reason}.</p>
        <input
          ref={input}
          type="password"
          autocomplete="off"
          placeholder="view or admin key"
          aria-label="Key"
        />
        <button type="submit">Open</button>
        <p class="quiet">It is stored until this tab closes.</p>
      </form>
    </main>
  )
}

function Help({ close }: { close(): void }) {
  const shown = new Map(commands.value.map((command) => [command.key, command.help]))
  return (
    <div class="overlay" onClick={close} onKeyDown={() => {}}>
      <section class="dialog">
        <header>
          <strong>Keys</strong>
        </header>
        <dl class="keys">
          {[...shown].map(([key, help]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{help}</dd>
            </div>
          ))}
        </dl>
      </section>
    </div>
  )
}
