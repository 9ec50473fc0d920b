import { useEffect, useRef, useState } from 'preact/hooks'
import { getLines, sessionPath } from '../lib/api.ts'
import { visible } from '../lib/format.ts'
import type { LiveEvent } from '../lib/wire.ts'

/** What turns in flight say, as they say it. */
export function LiveTail({ sessionId }: { sessionId: string }) {
  const [texts, setTexts] = useState<ReadonlyMap<number, string>>(new Map())
  const end = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const controller = new AbortController()
    const follow = async () => {
      for await (const event of getLines<LiveEvent>(sessionPath(sessionId, '/live'), controller.signal)) {
        const { type, index } = event
        if (index === undefined) continue
        setTexts((before) => {
          const now = new Map(before)
          const soFar = type === 'turn' ? '' : (before.get(index) ?? '')
          if (type === 'turn_closed') now.delete(index)
          else now.set(index, soFar + (event.reasoning ?? '') + (event.text ?? ''))
          return now
        })
      }
    }
    follow().catch(() => {})
    return () => controller.abort()
  }, [sessionId])
  useEffect(() => end.current?.scrollIntoView({ block: 'nearest' }), [texts])
  return (
    <div class="live-tail">
      {[...texts].map(([index, text]) => (
        <section class="turn" key={index}>
          <header>
            <i class="dot live" /> turn {index} <span class="quiet">is being answered</span>
          </header>
          <pre class="text">
            {visible(text)}
            <span class="caret" />
          </pre>
        </section>
      ))}
      <div ref={end} />
    </div>
  )
}
