/** Shows the parameters and tools of a turn's request: in one line, which expands to the complete values. */
import { useMemo, useState } from 'preact/hooks'
import { getSettings, type RequestSettings, type ToolSummary } from '../../../protocol/transcript/settings.ts'
import { revealInvisible } from '../lib/format.ts'
import type { Turn } from '../lib/wire.ts'
import { Long } from './long-text.tsx'

export function TurnSettings({ turn }: { turn: Turn }) {
  const settings = useMemo(() => getSettings(turn), [turn])
  const [isOpen, setOpen] = useState(false)
  const { params, tools } = settings
  if (params.length === 0 && tools.length === 0) return null
  const offered = tools.length === 0 ? [] : [tools.length === 1 ? '1 tool' : `${tools.length} tools`]
  const short = params.filter(([, value]) => value.length <= 24).map((pair) => pair.join(' '))
  return (
    <details class="settings" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{revealInvisible([...short, ...offered].join(' · '))}</summary>
      {isOpen && <AllSettings {...settings} />}
    </details>
  )
}

function AllSettings({ params, tools }: RequestSettings) {
  return (
    <dl class="fields">
      {params.map(([name, value]) => (
        <div key={name}>
          <dt>{revealInvisible(name)}</dt>
          <dd>
            <Long text={value} kind="arguments" />
          </dd>
        </div>
      ))}
      {tools.map((tool, index) => (
        <Tool key={index} tool={tool} />
      ))}
    </dl>
  )
}

function Tool({ tool: { name, description, parameters } }: { tool: ToolSummary }) {
  return (
    <div>
      <dt>
        tool <code class="call-name">{revealInvisible(name)}</code>
      </dt>
      <dd>
        {description !== '' && <Long text={description} kind="text" />}
        {parameters !== undefined && <Long text={JSON.stringify(parameters, null, 2)} kind="arguments" />}
      </dd>
    </div>
  )
}
