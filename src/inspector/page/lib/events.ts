/** Receives events of the proxy, after which views reload their data. */
import { useEffect, useRef } from 'preact/hooks'
import { getLines } from './api.ts'
import type { ProxyEvent } from './wire.ts'

/** The minimum interval between two notifications of a view, because events arrive in bursts. */
const SETTLE_MS = 700
const RETRY_MS = 5_000

/**
 * Calls `notify` after events of the proxy, while the view is open.
 * @param wanted selects events. Default: all except pings
 */
export function useEvents(notify: () => void, wanted: (event: ProxyEvent) => boolean = () => true): void {
  const latest = useRef({ notify, wanted })
  latest.current = { notify, wanted }
  useEffect(() => {
    const controller = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const listen = async (): Promise<void> => {
      for await (const event of getLines<ProxyEvent>('events', controller.signal)) {
        if (event.type === 'ping' || !latest.current.wanted(event)) continue
        timer ??= setTimeout(() => {
          timer = undefined
          latest.current.notify()
        }, SETTLE_MS)
      }
    }
    // An error with a status is final: the viewer of a database has no events, and a key may be missing.
    const reconnect = (error?: { status?: number }) => {
      if (!controller.signal.aborted && error?.status === undefined) retry = setTimeout(start, RETRY_MS)
    }
    let retry: ReturnType<typeof setTimeout> | undefined
    const start = () => void listen().then(() => reconnect(), reconnect)
    start()
    return () => {
      controller.abort()
      clearTimeout(timer)
      clearTimeout(retry)
    }
  }, [])
}
